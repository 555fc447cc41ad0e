"""What the commands print: tables, JSON, sizes, and text that came from messages."""

import json
import os
import re
import shlex
import shutil
import sys
import unicodedata
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.errors import counted

if TYPE_CHECKING:
    from stratalog.store.message import Message

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)|\x1b.?|\x9b[0-?]*[ -/]*[@-~]", re.DOTALL
)
"""Terminal sequences: CSI (colours, cursor), OSC and other strings (titles, links), lone escapes."""
_NAMED_MAX = 3
Offsets = tuple[str, int, int, int]
"""Topic, queue id and queue offsets [first, end)."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that show nothing, or change how a terminal shows the rest (bidirectional overrides)."""


def clean(text: str) -> str:
    """Text on one line without anything that a terminal would obey: it came from a message, so from anybody."""
    text = _ESCAPE.sub("", text)
    if text.isascii() and text.isprintable():
        return text
    text = "".join(" " if character in "\t\r\n" else character for character in text)
    return "".join(character for character in text if unicodedata.category(character) not in _UNSEEN)


def escaped(text: str) -> str:
    """Text on one line with everything that a terminal would obey, or not show, written out as \\xNN or \\uNNNN."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _UNSEEN else character
        for character in text
    )


def body_text(body: bytes) -> str:
    """A body for people: as UTF-8, bytes that are none as \\xNN."""
    return clean(body.decode("utf-8", "backslashreplace"))


def cut(text: str, width: int) -> str:
    """At most `width` characters; what is left out shows as an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def terminal_width() -> int:
    """Columns of the terminal; plenty where there is none, so that nothing is cut in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 200


def size_text(size: float) -> str:
    """Bytes in decimal units: 999 B, 1.5 kB, 23 MB."""
    units = ["TB", "GB", "MB", "kB"]
    unit = "B"
    while size >= 1000 and units:
        size, unit = size / 1000, units.pop()
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"


def before_log(count: int) -> str:
    """Messages that queues name and the log does not reach back to."""
    return f"{counted(count, 'message')} in front of the log's first file: removed by retention, or lost with a file"


def offsets_text(places: Iterable[Offsets]) -> str:
    """Queues and their offsets, given in order as (topic, queue id, first, end); a few of each."""
    queues: dict[tuple[str, int], list[list[int]]] = {}
    for topic, queue_id, first, end in places:
        ranges = queues.setdefault((topic, queue_id), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
        else:
            ranges.append([first, end])
    named = [f"{clean(topic)}/{queue_id} at {_ranges_text(ranges)}" for (topic, queue_id), ranges in queues.items()]
    more = f"; and {counted(len(named) - _NAMED_MAX, 'more queue')}" if len(named) > _NAMED_MAX else ""
    return "; ".join(named[:_NAMED_MAX]) + more


def _ranges_text(ranges: list[list[int]]) -> str:
    named = [f"{begin:,}" + (f" to {end - 1:,}" if end - begin > 1 else "") for begin, end in ranges]
    more = f" and {counted(len(named) - _NAMED_MAX, 'more range')}" if len(named) > _NAMED_MAX else ""
    return ", ".join(named[:_NAMED_MAX]) + more


def missing_rows(missing: Sequence[Offsets], lost_before: Sequence[Offsets]) -> dict[str, str]:
    """Queue offsets that no record has, as a report names them: those that were lost before, and the rest."""
    rows, unknown, marked = dict[str, str](), _without(missing, lost_before), within(missing, lost_before)
    if unknown:
        rows["missing"] = f"{_offset_count(unknown)}, and no damage explains it: {offsets_text(sorted(unknown))}"
    if marked:
        rows["lost before"] = f"{_offset_count(marked)}, lost to damage earlier: {offsets_text(sorted(marked))}"
    return rows


def _offset_count(places: Sequence[Offsets]) -> str:
    return f"{counted(sum(end - first for _, _, first, end in places), 'queue offset')} without a record"


def within(places: Sequence[Offsets], others: Sequence[Offsets]) -> list[Offsets]:
    """What of ranges of queue offsets is in others, too."""
    return _without(places, _without(places, others))


def _without(places: Sequence[Offsets], others: Sequence[Offsets]) -> list[Offsets]:
    left, by_queue = [], dict[tuple[str, int], list[tuple[int, int]]]()
    for topic, queue_id, begin, stop in sorted(others):
        by_queue.setdefault((topic, queue_id), []).append((begin, stop))
    for topic, queue_id, first, end in places:
        ranges = by_queue.get((topic, queue_id), [])
        low = bisect_right(ranges, first, key=lambda one: one[1])
        for begin, stop in ranges[low : bisect_left(ranges, (end, 0))]:
            if first < begin:
                left.append((topic, queue_id, first, begin))
            first = max(first, stop)
        if first < end:
            left.append((topic, queue_id, first, end))
    return left


def damaged_text(places: Sequence[Offsets]) -> str:
    """Records that are kept though their properties were damaged."""
    whose = "that is kept, its" if len(places) == 1 else "that are kept, their"
    what = (
        f"the properties of {counted(len(places), 'record')} {whose} tags, keys or light queues may be lost or changed"
    )
    return f"{what}: {offsets_text(places)}"


def missing_json(missing: Sequence[Offsets]) -> list[dict[str, Any]]:
    """Ranges of queue offsets for a program."""
    return [
        {"topic": topic, "queueId": queue_id, "begin": first, "end": end} for topic, queue_id, first, end in missing
    ]


def seconds_text(seconds: float) -> str:
    """A duration: 85 µs, 1.3 ms, 4.2 s, 3:07 min."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def time_text(timestamp_ms: int) -> str:
    """A moment in UTC, to the millisecond; the number itself where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = (), indent: str = "", gap: int = 2
) -> str:
    """Columns in line under their titles; `right` are the numbers of columns that are flush right."""
    lines = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(titles))]
    flush_right = set(right)

    def line(cells: list[str]) -> str:
        padded = (
            cell.rjust(width) if number in flush_right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )  # fmt: skip
        return indent + (" " * gap).join(padded).rstrip()

    rule = indent + (" " * gap).join("─" * width for width in widths)
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def show_json(value: Any) -> None:
    """One JSON document on one line; ASCII only, so that no terminal obeys what is in it."""
    print(json.dumps(value, default=lambda other: sorted(other) if isinstance(other, set) else str(other)))


def message_json(message: "Message") -> dict[str, Any]:
    """A message with the names of the Spark source; the body as text where it is UTF-8, else as base64."""
    shown: dict[str, Any] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "messageId": message.message_id,
    }
    try:
        shown["body"] = message.body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = b64encode(message.body).decode()
    return shown


MESSAGE_TITLES = ("queue", "offset", "stored (UTC)", "tags", "keys", "bytes", "body")
MESSAGE_RIGHT = (1, 5)
_KEYS_WIDTH = 40


def message_row(message: "Message", *, full: bool = False) -> list[str]:
    """A message as a row under `MESSAGE_TITLES`; the body is cut to the terminal unless `full`."""
    row = [
        str(message.queue_id),
        f"{message.queue_offset:,}",
        time_text(message.store_timestamp),
        clean(message.tags or ""),
        cut(clean(" ".join(message.keys)), _KEYS_WIDTH),
        f"{message.store_size:,}",
    ]
    text = body_text(message.body)
    return [*row, text if full else cut(text, max(20, terminal_width() - sum(len(cell) + 2 for cell in row) - 12))]


def complain(sentence: str) -> None:
    """An error: one sentence on stderr."""
    print(f"stratalog: {clean(sentence)}", file=sys.stderr)


def tell(text: str) -> None:
    """A remark that is no result: on stderr, so that a pipe gets results only."""
    print(text, file=sys.stderr, flush=True)


def tell_owner(root: Path, *, copied_from: Path | None = None) -> None:
    """Remark that root made files in another user's store: the broker of that user cannot open them."""
    from stratalog.layout.names import COMMIT_LOG

    log = (copied_from or root) / COMMIT_LOG
    if os.geteuid() == 0 and log.exists() and log.stat().st_uid:
        chown = shlex.join(["chown", "-RH", f"--reference={log}", str(root)])
        tell(f"note: root owns the files that were made; give them to the user of the broker: `{chown}`")


def pairs(values: Mapping[str, str], *, indent: str = "  ") -> str:
    """Names and values in two columns."""
    width = max(map(len, values))
    return "\n".join(f"{indent}{name.ljust(width)}  {value}" for name, value in values.items())
