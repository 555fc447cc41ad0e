"""`stratalog put`: messages from the command line, a file, or lines."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.output import complain, show_json, tell, tell_owner
from stratalog.cli.place import ConfOption, JsonFlag, SettingsOption, StoreArgument, open_local
from stratalog.cli.progress import Progress
from stratalog.cli.streams import shows_what_is_done
from stratalog.errors import IllegalMessage, counted

if TYPE_CHECKING:
    from stratalog.store.queue import Queue
    from stratalog.store.record_put import Receipt

WRONG_CALL, PUT_AFTER_DAMAGE = 2, 3
"""Exit codes."""

EXAMPLES = """
stratalog put data/store orders "a first message" --tags paid --key o-1
stratalog put data/store orders --file picture.png     # the whole file is one message
seq 1000 | stratalog put data/store orders             # each line is a message"""


def put(
    store: StoreArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic; it comes into being with its first message.")],
    body: Annotated[
        str | None, typer.Argument(metavar="BODY", help="The message. Without it and --file: lines of stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", exists=True, dir_okay=False, metavar="FILE", help="File whose content is the message."
        ),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="With --file: each of its lines is a message.")] = False,
    queue_id: Annotated[int, typer.Option("--queue", "-q", min=0, help="Queue of the topic.")] = 0,
    tags: Annotated[str | None, typer.Option("--tags", help="Tags, for filtering.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", "-k", help="Index key, may be repeated.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property, may be repeated.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A new store gets files of a few MB: 6 MB on disk, not 1.5 GB.")
    ] = False,
    conf: ConfOption = None,
    given: SettingsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Put messages into a store, which is created if it is not there.

    What was put is on the disk when the command says so. A line's end (LF or CR LF) is no part of its message.

    Exit code 0: put. 1: not, or not all, or the store could not be closed: stderr says what is stored. 2: the call is
    wrong, nothing was put. 3: put, but after damage in the log: stratalog serves the messages, RocketMQ may drop them
    when it starts next. A line on stderr names the repair. 4: put, but standard output does not take the receipt.
    """
    if body is not None and file is not None:
        raise typer.BadParameter("give the message or --file, not both")
    if body is not None and lines:
        raise typer.BadParameter("--lines takes the lines of --file or of standard input: leave BODY out")
    described: dict[str, Any] = {"tags": tags, "keys": key, "properties": _properties(property_)}
    is_one = body is not None or (file is not None and not lines)
    done: _Done | None = None
    try:
        with open_local(store, mode="w", given=given, conf=conf, small=small) as opened:
            for note in opened.recovery.notes:
                tell(f"note: {note}")
            begin = time.perf_counter()
            try:
                done = _Done(opened.queue(topic, queue_id))
                if is_one:
                    content = body.encode("utf-8", "surrogateescape") if body is not None else _content(file, opened)
                    done.put(content, described)
                else:
                    _put_lines(done, file, described)
            except IllegalMessage as error:
                if done and done.count:
                    raise
                complain(str(error))
                raise typer.Exit(WRONG_CALL) from None
            done.is_all = True
            opened.flush()
            seconds = time.perf_counter() - begin
            warning = opened.recovery.warning
    except BaseException as error:
        if done and done.count:
            told = done.told()
            error.add_note(f"{told[0].upper()}{told[1:]}")
        raise
    tell_owner(store)
    if warning:
        complain(warning)
    with shows_what_is_done(done.told()):
        _show(done, seconds, as_json=as_json)
    if warning:
        raise typer.Exit(PUT_AFTER_DAMAGE)


class _Done:
    """What was put so far."""

    def __init__(self, queue: "Queue") -> None:
        self.queue = queue
        self.begin = queue.next_offset
        self.first: Receipt | None = None
        self.last: Receipt | None = None
        self.is_all = False

    @property
    def count(self) -> int:
        """Also of a put that Ctrl-C ended before its receipt was here."""
        return self.queue.next_offset - self.begin

    def put(self, body: bytes, described: dict[str, Any]) -> None:
        self.last = self.queue.put(body, **described)
        self.first = self.first or self.last

    def told(self) -> str:
        """What is stored, and what to do about it."""
        if not self.count:
            return "nothing was put"
        which = f"the {self.count:,} messages are" if self.count > 1 else "the message is"
        where = f"in {self.queue.topic}/{self.queue.queue_id} from offset {self.begin:,} on"
        log = self.queue.store.log
        if log.durable_offset < log.end_offset:
            return f"{which} in the log, {where}, and not known to be durable: read what is there before you put again"
        step = "do not put again" if self.is_all else f"go on with line {self.count + 1:,}"
        return f"{which} stored, {where}: {step}"


def _properties(given: list[str] | None) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in given or ()]
    for name, separator, _ in pairs:
        if not separator:
            raise typer.BadParameter(f"--property {name}: write name=value")
    return {name: value for name, _, value in pairs} or None


def _content(file: Path | None, store: Any) -> bytes:
    assert file is not None
    limit = store.settings.max_message_size
    if file.stat().st_size > limit:
        raise IllegalMessage(
            f"{file} has {counted(file.stat().st_size, 'byte')}, a message may have {limit:,}; nothing was written. "
            "Cut it, or raise the limit with --set max_message_size=…"
        )
    return file.read_bytes()


def _put_lines(done: _Done, file: Path | None, described: dict[str, Any]) -> None:
    size = 0
    with _opened(file) as stream, Progress("put") as progress:
        for number, line in enumerate(stream, 1):
            done.put(line.removesuffix(b"\r\n").removesuffix(b"\n"), described)
            size += len(line)
            if number % 1000 == 0:
                progress(size, 0, number)


@contextmanager
def _opened(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None:
        yield sys.stdin.buffer
    else:
        with file.open("rb") as stream:
            yield stream


def _show(done: _Done, seconds: float, *, as_json: bool) -> None:
    queue, first, last, count = done.queue, done.first, done.last, done.count
    if first is None or last is None:
        if as_json:
            show_json({"topic": queue.topic, "queueId": queue.queue_id, "count": 0})
        else:
            print("no line came in: nothing was put")
        return
    if as_json:
        shown = {"topic": queue.topic, "queueId": queue.queue_id, "count": count, "queueOffset": first.queue_offset}
        shown |= {"lastQueueOffset": last.queue_offset, "commitLogOffset": first.commit_log_offset}
        shown |= {"storeSize": last.end_offset - first.commit_log_offset, "storeTimestamp": first.store_timestamp}
        show_json(shown | {"messageId": first.message_id})
    elif count == 1:
        place = f"{queue.topic}/{queue.queue_id} at offset {first.queue_offset:,}"
        print(f"put into {place}, message id {first.message_id}")
    else:
        print(
            f"put {counted(count, 'message')} into {queue.topic}/{queue.queue_id} at offsets {first.queue_offset:,} to "
            f"{last.queue_offset:,} ({count / max(seconds, 1e-9):,.0f} messages/s)"
        )
