"""A unit of a light queue has a flipped bit, or another unit's bytes: each message is served at its offset or named,
and the next one gets the next offset."""

from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, QUEUE_FILE_UNITS, Content, Known, read_on
from store.test_recreated_topics import STATES
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import UNIT
from stratalog.store.message_store import MessageStore

KEY = LIGHT_KIND.queues[0]
PROPERTIES = encode_properties({"INNER_MULTI_DISPATCH": KEY[0]})
SIZES: dict[str, tuple[int, ...]] = {"256": (256,), "512": (512,), "mixed": (256, 512, 300, 256, 777)}
COUNT = 10
DAMAGES = [*(f"bit {bit}" for bit in range(96)), *(f"unit {number}" for number in range(COUNT))]


def made(root: Path, sizes: tuple[int, ...]) -> Content:
    content, end = Content(), 0
    with LIGHT_KIND.open(root) as store:
        for number in range(COUNT):
            size = sizes[number % len(sizes)]
            put(store, content, b"%d" % number * (size - 152))
            begin, end = end, store.log.end_offset
            assert end - begin == size
    return content


def put(store: MessageStore, content: Content, body: bytes = b"new") -> None:
    number = len(content.queues.get(KEY, ()))
    assert store.queue("parent", 0).put_raw(body, PROPERTIES).queue_offset == number
    content.add(KEY, Known.of(next(iter(store.queue("parent", 0).read(number)))))


def damage(root: Path, unit: int, what: str) -> None:
    paths = LIGHT_KIND.files(root, KEY)
    kind, number = what.split()
    path, at = paths[unit // QUEUE_FILE_UNITS], unit % QUEUE_FILE_UNITS * UNIT.size
    data = bytearray(path.read_bytes())
    if kind == "bit":
        data[at + int(number) // 8] ^= 1 << int(number) % 8
    else:
        other = int(number) % QUEUE_FILE_UNITS * UNIT.size
        data[at : at + UNIT.size] = paths[int(number) // QUEUE_FILE_UNITS].read_bytes()[other : other + UNIT.size]
    path.write_bytes(data)


def check(store: MessageStore, expected: dict[int, Known]) -> None:
    found, errors, named = read_on(store.queue(*KEY))
    told = [store.recovery.warning, *store.recovery.notes, *map(str, store.recovery.left_out), *map(str, errors)]
    assert found.items() <= expected.items()
    assert expected.keys() - found.keys() <= named or any(told), f"lacks {sorted(expected.keys() - found.keys())}"
    assert store.queue(*KEY).max_offset == len(expected) or any(told)


def check_opened(root: Path, content: Content) -> None:
    for mode in ("r", "w"):
        with LIGHT_KIND.open(root, mode=mode) as store:
            check(store, content.queues[KEY])
            if mode == "w":
                put(store, content)
                check(store, content.queues[KEY])


@pytest.mark.one_in(900)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("unit", range(COUNT))
@pytest.mark.parametrize("sizes", SIZES)
def test_no_message_is_hidden_by_a_damaged_unit(sizes: str, unit: int, what: str, state: str, tmp_path: Path) -> None:
    content = made(tmp_path, SIZES[sizes])
    STATES[state](tmp_path)
    damage(tmp_path, unit, what)
    check_opened(tmp_path, content)


@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed"])
@pytest.mark.parametrize(("unit", "what"), [(0, "unit 9"), (1, "bit 51"), (1, "unit 9"), (4, "unit 7"), (7, "unit 9")])
def test_a_unit_that_leads_to_a_later_message_hides_none_between(
    unit: int, what: str, state: str, tmp_path: Path
) -> None:
    """Bit 51 makes 256 into 2304, where the newest record begins."""
    content = made(tmp_path, SIZES["256"])
    STATES[state](tmp_path)
    damage(tmp_path, unit, what)
    check_opened(tmp_path, content)
    assert len(content.queues[KEY]) == COUNT + 1


@pytest.mark.parametrize("stale", range(COUNT))
def test_places_that_came_apart_from_the_offsets_stay_where_an_old_unit_follows(stale: int, tmp_path: Path) -> None:
    """As RocketMQ leaves them behind a message that names a light queue twice: the offset grows by two, the queue by
    one unit."""
    key, path = KEY, LIGHT_KIND.directory(tmp_path, KEY)
    with LIGHT_KIND.open(tmp_path, enable_lmq=False, enable_multi_dispatch=False) as store:
        for number in range(COUNT):
            names, offsets = (key[0], str(number + 1)) if number else (f"{key[0]},{key[0]}", "0,0")
            properties = encode_properties({"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets})
            store.queue("parent", 0).put_raw(b"%d" % number, properties)
        units = store.queue("parent", 0).units(0, COUNT)
    STATES["closed by RocketMQ"](tmp_path)
    units += units[stale * UNIT.size : (stale + 1) * UNIT.size]
    path.mkdir(parents=True)
    size = QUEUE_FILE_UNITS * UNIT.size
    for begin in range(0, len(units), size):
        (path / f"{begin:020d}").write_bytes(units[begin : begin + size].ljust(size, b"\0"))
    for mode in ("r", "w"):
        with LIGHT_KIND.open(tmp_path, mode=mode) as store:
            found = [(message.queue_offset, message.body) for message in store.queue(*key).read()]
            assert found == [(number, b"%d" % number) for number in range(COUNT)]
