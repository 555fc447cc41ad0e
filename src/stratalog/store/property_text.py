"""From keywords to stored property text, fast: what depends on the names only is made once per set of names."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from stratalog.errors import IllegalMessage
from stratalog.layout.javahash import property_order
from stratalog.layout.properties import CRC32, KEYS, NAME_END, TAGS, UNIQUE_KEY, VALUE_END

Shape = tuple[str, Callable[[tuple[Any, ...]], Any], int]
"""How properties with one set of names are written: a `%` template in RocketMQ's order, what picks the values in that
order from (tags, keys, unique key, *properties), and their number."""


def shape_of(absent: tuple[bool, bool, bool], names: tuple[str, ...]) -> Shape:
    for name in names:
        if not name or NAME_END in name or VALUE_END in name:
            raise IllegalMessage(f"property name {name!r}: empty, or it holds a separator character (0x01 or 0x02)")
    numbered = [(name, number) for number, name in enumerate((TAGS, KEYS, UNIQUE_KEY, *names))]
    given = dict(pair for pair in numbered if pair[1] >= len(absent) or not absent[pair[1]])
    if len(given) != len(names) + absent.count(False):
        raise IllegalMessage(f"property {', '.join(names)}: one of these is given by tags, keys or unique_key as well")
    given.pop(CRC32, None)  # of the record that the properties come from
    if not given:
        return "", lambda values: (), 0
    ordered = property_order(list(given))
    template = "".join(f"{name.replace('%', '%%')}{NAME_END}%s{VALUE_END}" for name in ordered)
    return template, itemgetter(*(given[name] for name in ordered)), len(ordered)


def bad_value(names: tuple[str, ...], values: tuple[Any, ...]) -> IllegalMessage:
    for name, text in zip(names, values, strict=True):
        if text is None:
            continue
        if not text:
            return IllegalMessage(f"property {name!r} is empty: leave it out (a reader would not see it)")
        if NAME_END in text or VALUE_END in text:
            return IllegalMessage(f"property {name!r} holds a separator character (0x01 or 0x02); nothing was written")
        if not (name.isascii() and text.isascii()) and (name + text).encode("utf-8", "replace").decode() != name + text:
            return IllegalMessage(f"property {name!r} holds half of a surrogate pair, which is no text")
    return IllegalMessage(f"properties {names} cannot be encoded")
