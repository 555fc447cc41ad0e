"""`stratalog dump`: what is in a store's files, record by record."""

import itertools
import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stratalog.cli.output import cut, escaped, message_json, show_json, size_text, tell, terminal_width, time_text
from stratalog.cli.place import JsonFlag, given_path, given_topic, warm_up
from stratalog.cli.read import moment
from stratalog.errors import IllegalMessage, NotAStore, counted

if TYPE_CHECKING:
    from stratalog.store.message import Message
    from stratalog.tools.dump_files import Item

EXAMPLES = """
stratalog dump data/store/commitlog/00000000000000000000 --limit 5
stratalog dump data/store --topic orders --key o-1 --json
stratalog dump 00000000000000000000 --hex --limit 1      # any file by itself, every byte
stratalog dump data/store/checkpoint"""

BODY_SIZE_MAX = 16 * 1024 * 1024
"""What a compressed body may grow to."""
_HEX_WIDTH = 32
_TIMES = ("timestamp", "_time")
_TIME_MIN_MS = 1 << 40
_NO_QUANTITIES = ("hash", "crc", "code", "id", "port", "flag")
Body = Literal["text", "hex", "base64", "none"]


def dump(
    path: Annotated[
        Path,
        typer.Argument(parser=given_path, metavar="FILE_OR_STORE", help="A file, or a directory: every file below it."),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--type", help="Type of the file, or which files of a directory: commitlog, consumequeue, index …"
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", parser=given_topic, metavar="TEXT", help="Of this topic.")
    ] = None,
    queue_id: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Of this queue.")] = None,
    first: Annotated[int | None, typer.Option("--from-offset", min=0, help="At or after this queue offset.")] = None,
    last: Annotated[int | None, typer.Option("--to-offset", min=0, help="At or before this queue offset.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="With this index key or unique key.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="With these tags.")] = None,
    begin: Annotated[str | None, typer.Option("--from-time", metavar="TIME", help="Stored at or after.")] = None,
    end: Annotated[str | None, typer.Option("--to-time", metavar="TIME", help="Stored at or before.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="So many at most.")] = None,
    body: Annotated[
        Body, typer.Option("--body", help="How to show bodies; compressed ones are decompressed.")
    ] = "text",
    show_hex: Annotated[bool, typer.Option("--hex", help="Show every field with its position and bytes.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what is in a store's files, record by record, with positions.

    Any file of RocketMQ's local store, in its store or copied out of it: log, queues, index, checkpoint, timer,
    configuration. Nothing is changed, nothing is recovered first, and a broker may be running. Damaged ranges are shown
    as such and stepped over. With --json: one object a line.
    """
    warm_up()
    from stratalog.store.arguments import time_range
    from stratalog.store.opening import check_finished
    from stratalog.tools.dump import Asked
    from stratalog.tools.dump import dump as items_of

    begin_ms, end_ms = _milliseconds("--from-time", begin), _milliseconds("--to-time", end)
    if begin_ms is not None and end_ms is not None:
        time_range(begin_ms, end_ms)
    asked = Asked(
        topic=topic, queue_id=queue_id, first_offset=first, end_offset=None if last is None else last + 1, key=key,
        tags=tags, begin_ms=begin_ms, end_ms=end_ms,
    )  # fmt: skip
    for directory in (path, *path.absolute().parents):
        try:
            check_finished(directory)
        except NotAStore as error:
            tell(f"note: {error}")
    found = items_of(path, kind=kind, asked=asked)
    shown, shown_path = 0, None
    width = terminal_width() if sys.stdout.isatty() else sys.maxsize
    for item in found if limit is None else itertools.islice(found, limit):
        shown += 1
        if as_json:
            show_json(_as_json(item, body))
            continue
        if item.path != shown_path:
            print(f"{'' if shown_path is None else chr(10)}{escaped(str(item.path))}")
            shown_path = item.path
        for line in _hex_lines(item) if show_hex else [_line(item, body)]:
            print(cut(line, width))
    if not as_json and not shown:
        tell("nothing that was asked for")


def _milliseconds(name: str, text: str | None) -> int | None:
    from stratalog.store.arguments import milliseconds

    return None if text is None else milliseconds(name, moment(text))


def _line(item: "Item", body: Body) -> str:
    """One item on one line; the caller cuts it."""
    from stratalog.tools.verify import MEANING

    head = f"  {item.position:>13,}  {item.kind:<13} "
    if item.message is not None:
        return head + _message_text(item.message, body)
    if item.kind == "damage":
        reason = str(item.values.get("reason", ""))
        return f"{head}{counted(item.size, 'byte')} cannot be read: {escaped(MEANING.get(reason, reason))}"
    if item.kind in ("unwritten", "blank", "filler", "lost", "end", "empty"):
        count = f" ({counted(item.values['count'], 'unit')})" if "count" in item.values else ""
        return f"{head}{size_text(item.size)}{count}"
    if "content" in item.values:
        content = item.values["content"]
        return head + (escaped(content) if isinstance(content, str) else json.dumps(_plain(content)))
    return head + "  ".join(f"{name} {_value_text(name, value)}" for name, value in item.values.items())


def _message_text(message: "Message", body: Body) -> str:
    parts = [
        f"{escaped(message.topic)}/{message.queue_id} at {message.queue_offset:,}",
        f"{counted(message.store_size, 'byte')}",
        time_text(message.store_timestamp),
    ]
    if message.tags:
        parts.append(f"tags {escaped(message.tags)}")
    if message.keys:
        parts.append(f"keys {escaped(' '.join(message.keys))}")
    if body != "none":
        parts.append(escaped(_body(message, body)))
    return "  ".join(parts)


def _body(message: "Message", body: Body) -> str:
    """The body as asked for; as it is stored where it cannot be decompressed."""
    plain = _decompressed(message)
    if body == "hex":
        return plain.hex()
    if body == "base64":
        return b64encode(plain).decode()
    return plain.decode("utf-8", "backslashreplace")


def _decompressed(message: "Message") -> bytes:
    try:
        return message.decompressed(size_max=BODY_SIZE_MAX)
    except IllegalMessage:
        return message.body


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):
        if name.endswith(_TIMES) and value > _TIME_MIN_MS:
            return time_text(value)
        if "magic" in name:
            return f"{value & 0xFFFFFFFF:#010x}"
        return str(value) if name.endswith(_NO_QUANTITIES) else f"{value:,}"
    return escaped(str(value))


def _hex_lines(item: "Item") -> Iterator[str]:
    """The item's name, then a line for each field: position, bytes, value."""
    yield f"  {item.position:>13,}  {item.kind}, {counted(item.size, 'byte')}"
    for position, hexadecimal, name, value in item.rows():
        shown = cut(hexadecimal, _HEX_WIDTH)
        text = _bytes_text(name, value) if isinstance(value, bytes) else _value_text(name, value)
        yield f"  {position:>13,}  {shown:<{_HEX_WIDTH}}  {name} = {escaped(text)}"


def _bytes_text(name: str, value: bytes) -> str:
    if name.endswith("address"):
        return str(ip_address(value))
    return value.decode("utf-8", "backslashreplace")


def _as_json(item: "Item", body: Body) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "file": str(item.path), "position": item.position, "size": item.size, "type": item.kind,
    }  # fmt: skip
    if item.message is None:
        return shown | {_camel(name): _plain(value) for name, value in item.values.items()}
    message = message_json(item.message)
    message.pop("body", None)
    message.pop("bodyBase64", None)
    shown |= message | {"sysFlag": item.message.sys_flag, "flag": item.message.flag}
    shown |= {"bornHost": str(item.message.born_host), "storeHost": str(item.message.store_host)}
    if body != "none":
        plain = _decompressed(item.message)
        try:
            named = {"body": plain.decode()} if body == "text" else {}
        except UnicodeDecodeError:
            named = {}
        if body == "hex":
            named = {"bodyHex": plain.hex()}
        shown |= named or {"bodyBase64": b64encode(plain).decode()}
    return shown


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
