"""`stratalog get`, `query` and `tail`: messages by offset, by key, and as they come."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.intact import Intact, begin_of
from stratalog.cli.output import (
    MESSAGE_RIGHT,
    MESSAGE_TITLES,
    complain,
    message_json,
    message_row,
    seconds_text,
    show_json,
    table,
    tell,
)
from stratalog.cli.place import (
    JsonFlag,
    PlaceArgument,
    SettingsOption,
    StoreArgument,
    TierFlag,
    given_topic,
    open_place,
)
from stratalog.errors import OffsetOutOfRange, counted

if TYPE_CHECKING:
    from stratalog.store.arguments import Moment
    from stratalog.store.message import Message
    from stratalog.store.message_store import MessageStore
    from stratalog.store.queue import Queue
    from stratalog.tiered import TieredQueue, TieredStore

GET_EXAMPLES = """
stratalog get data/store orders --queue 2 --offset 1000 --count 20
stratalog get data/tier orders --tier --time 2026-11-21T17:00:00Z"""
QUERY_EXAMPLES = """
stratalog query data/store orders o-1
stratalog query data/tier orders o-1 --tier --begin 2026-11-20T00:00:00Z"""
TAIL_EXAMPLES = """
stratalog tail data/store orders                   # until Ctrl-C
stratalog tail data/store orders --last 0 --count 5"""

TopicArgument = Annotated[str, typer.Argument(parser=given_topic, metavar="TOPIC", help="Topic to read.")]
QueueOption = Annotated[int, typer.Option("--queue", "-q", min=0, help="Queue of the topic.")]
FullFlag = Annotated[bool, typer.Option("--full", help="Show whole bodies instead of what fits on a line.")]

MISSING = 1
"""Exit code: some messages could not be read."""


def moment(text: str) -> "Moment":
    """An ISO time (UTC unless it names a zone), or a number of milliseconds since 1970."""
    if text.isascii() and text.lstrip("-").isdecimal():
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time: write 2026-11-21T17:00:00Z, or milliseconds") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def get(
    place: PlaceArgument,
    topic: TopicArgument,
    queue_id: QueueOption = 0,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, help="First queue offset; the oldest if not given.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Begin with the first message stored at or after this; UTC unless a zone is given.",
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many messages at most.")] = 10,
    full: FullFlag = False,
    tier: TierFlag = False,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Read a queue from an offset or a time.

    Out of a local store or a tier. With --json: one object a line. Damaged and lost messages are named on stderr and
    stepped over; the exit code is 1 then.
    """
    if offset is not None and at is not None:
        raise typer.BadParameter("give --offset or --time, not both")
    begins_at = None if at is None else moment(at)
    with open_place(place, tier=tier, given=given) as store:
        queue = known_queue(store, topic, queue_id)
        reads, begin = _reads(store), time.perf_counter()
        if offset is None:
            offset = queue.min_offset if begins_at is None else queue.offset_at(begins_at)
            if offset == queue.min_offset:  # as in the middle, a time leads to what was lost before its message
                offset = begin_of(queue)
        intact = Intact()
        messages = list(intact.read(queue, offset, count))
        seconds = time.perf_counter() - begin
        if len(messages) < count:
            intact.name_lost_end(queue)
        _show(messages, full=full, as_json=as_json)
        if not as_json:
            span = f"{topic}/{queue_id} holds offsets {queue.min_offset:,} to {queue.max_offset - 1:,}"
            if queue.min_offset == queue.max_offset:
                span = f"{topic}/{queue_id} is empty"
            tell(f"{counted(len(messages), 'message')} in {seconds_text(seconds)}{_read_text(store, reads)}; {span}")
    _exit_if_missing(intact)


def query(
    place: PlaceArgument,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Index key or unique key of the messages.")],
    begin: Annotated[str | None, typer.Option("--begin", metavar="TIME", help="Stored at or after.")] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="TIME", help="Stored at or before.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 64,
    full: FullFlag = False,
    tier: TierFlag = False,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Find messages by key.

    Out of a local store or a tier. Every hit is compared with the message itself, so keys that share a hash are told
    apart. Says on stderr when there are more than --limit. With --json: one object a line. Damaged messages and ranges
    of the log are named on stderr and stepped over; the exit code is 1 then.
    """
    times = {name: moment(text) for name, text in (("begin", begin), ("end", end)) if text is not None}
    with open_place(place, tier=tier, given=given) as store:
        if not hasattr(store, "stats"):
            store.candidates(topic, key="")  # loads the compiled look-up, which the latency shall not count
        reads, started = _reads(store), time.perf_counter()
        found = store.query(known_topic(store, topic), key=key, limit=limit, **times)
        seconds = time.perf_counter() - started
        _show(sorted(found, key=lambda message: message.store_timestamp), full=full, as_json=as_json)
        if not as_json:
            tell(f"{counted(len(found), 'message')} in {seconds_text(seconds)}{_read_text(store, reads)}")
        if found.more:
            tell(f"there are older messages with this key: raise --limit, which is {limit:,}")
        for error in found.damaged:
            complain(str(error))
    if found.damaged:
        raise typer.Exit(MISSING)


def tail(
    store: StoreArgument,
    topic: TopicArgument,
    queue_id: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="This queue only.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with the last so many of each queue.")] = 10,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after so many messages.")] = None,
    full: FullFlag = False,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Follow a topic as another process writes it.

    Shows the last messages of its queues, then new ones as they are put. Damaged ones are named on stderr and stepped
    over. Ctrl-C ends it.
    """
    from stratalog.cli.follow import follow

    left, intact = count, Intact()
    for message in follow(store, topic, queue_id, last=last, given=given, intact=intact):
        if as_json:
            show_json(message_json(message))
        else:
            print("  ".join(message_row(message, full=full)), flush=True)
        if left is not None:
            left -= 1
            if not left:
                break
    _exit_if_missing(intact)


def known_queue(store: "MessageStore | TieredStore", topic: str, queue_id: int) -> "Queue | TieredQueue":
    """A queue that is there. Raises `OffsetOutOfRange` naming those that are."""
    there = store.queues()
    if (topic, queue_id) not in there:
        names = ", ".join(f"{name}/{number}" for name, number in there[:8]) + (" …" if len(there) > 8 else "")
        raise OffsetOutOfRange(
            f"there is no queue {topic}/{queue_id}; {f'there are {names}' if there else 'there are no messages yet'}",
            next_offset=0,
        )
    return store.queue(topic, queue_id)


def known_topic(store: "MessageStore | TieredStore", topic: str) -> str:
    """A topic that is there. Raises `OffsetOutOfRange` naming those that are."""
    there = store.topics()
    if topic not in there:
        names = ", ".join(there[:8]) + (" …" if len(there) > 8 else "")
        raise OffsetOutOfRange(
            f"there is no topic {topic}; {f'there are {names}' if there else 'there are no messages yet'}",
            next_offset=0,
        )
    return topic


def _exit_if_missing(intact: Intact) -> None:
    if intact.missing_count:
        raise typer.Exit(MISSING)


def _show(messages: Iterable["Message"], *, full: bool, as_json: bool) -> None:
    if as_json:
        for message in messages:
            show_json(message_json(message))
    else:
        rows = [message_row(message, full=full) for message in messages]
        if rows:
            print(table(MESSAGE_TITLES, rows, right=MESSAGE_RIGHT))


def _reads(store: "MessageStore | TieredStore") -> int:
    return getattr(getattr(store, "stats", None), "reads", 0)


def _read_text(store: "MessageStore | TieredStore", before: int) -> str:
    """How many ranged reads the tier was asked for; a local store is mapped and asks for none."""
    if not hasattr(store, "stats"):
        return ""
    reads = _reads(store) - before
    return f" with {counted(reads, 'read')}"
