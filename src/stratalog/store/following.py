"""Reading on in a store that another process writes.

A read-only store shows one state. To see a later one it is opened again, which takes some milliseconds and is right
whatever the writer did meanwhile: put, roll, delete old files, crash and recover. As long as the log does not grow,
nothing is opened.

None of that takes messages off a queue's end or changes those it holds. Where a later state does, another store was put
in the place of this one (a backup, a new one) or the end was lost: offsets that were read belong to other messages.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratalog.errors import CorruptData, OffsetOutOfRange

if TYPE_CHECKING:
    from stratalog.store.message import Message
    from stratalog.store.message_store import MessageStore
    from stratalog.store.queue import Queue

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 1.0


def views(store: "MessageStore") -> Iterator["MessageStore"]:
    """A store that is open read-only, then a new view of it each time that the log has grown; waits for that.

    A view is closed when the next one is asked for. Raises what opening raises; `StoreClosed` once `store` is closed.
    """
    view, pause_s = store, _PAUSE_MIN_S
    try:
        while True:
            yield view
            end_offset = view.log.end_offset
            while not view.log.has_grown():
                time.sleep(pause_s)
                store.catch_up()
            if view is not store:
                view.close()
            begin = time.monotonic()
            view = store.fresh_view()
            if view.log.end_offset == end_offset:  # a torn record at the end, or a file made ahead
                pause_s = min(_PAUSE_MAX_S, 2 * pause_s)
                time.sleep(pause_s)
            else:  # where opening takes long, it is done less often
                pause_s = max(_PAUSE_MIN_S, min(_PAUSE_MAX_S, time.monotonic() - begin))
    finally:
        if view is not store:
            view.close()


def message_before(queue: "Queue", offset: int) -> "Message | None":
    """The message at the offset before this one; None where there is none that can be read."""
    if queue.min_offset < offset <= queue.max_offset:
        with contextlib.suppress(CorruptData):
            for message in queue.read(offset - 1, count=1):
                return message if message.queue_offset == offset - 1 else None
    return None


def is_replaced(queue: "Queue", start: int, last: "Message | None") -> bool:
    """Whether a queue that was read up to the offset `start` ends before it now, or has another message than `last`
    right before it."""
    if start > queue.max_offset:
        return True
    again = message_before(queue, start) if last else None
    return again is not None and again != last


def replaced_text(queue: "Queue", start: int) -> str:
    """An error's first words."""
    return (
        f"{queue.topic}/{queue.queue_id} is not the queue that was read up to offset {start:,}: it holds offsets "
        f"[{queue.min_offset}, {queue.max_offset}). Its store was put back from a backup or made anew, or its end was "
        "lost"
    )


def follow_writer(queue: "Queue", start: int, left: int) -> Iterator["Message"]:
    """What `Queue.read` yields with `follow` in a read-only store.

    Raises `OffsetOutOfRange` when the writer deleted messages before they were read, and when the store was replaced.
    """
    last = message_before(queue, start)
    for view in views(queue.store) if left else ():
        seen = view.queue(queue.topic, queue.queue_id)
        low, end = seen.min_offset, seen.max_offset
        if is_replaced(seen, start, last):
            raise OffsetOutOfRange(replaced_text(seen, start), next_offset=end if start > end else low)
        if start < low:
            raise OffsetOutOfRange(
                f"{seen.topic}/{seen.queue_id} holds offsets [{low}, {end}): those from {start} on were "
                "deleted before they were read",
                next_offset=low,
            )
        if start == end:
            continue
        for message in seen.read(start, count=left):
            yield message
            left -= 1
        if not left:
            return
        start, last = end, message_before(seen, end)
