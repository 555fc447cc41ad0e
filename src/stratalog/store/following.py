"""Reading on in a store that another process writes.

A read-only store shows one state. To see a later one it is opened again, which takes some milliseconds and is right
whatever the writer did meanwhile: put, roll, delete old files, crash and recover. As long as the log does not grow,
nothing is opened.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratalog.errors import OffsetOutOfRange

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


def follow_writer(queue: "Queue", start: int, left: int) -> Iterator["Message"]:
    """What `Queue.read` yields with `follow` in a read-only store.

    Raises `OffsetOutOfRange` when the writer deleted messages before they were read.
    """
    for view in views(queue.store) if left else ():
        seen = view.queue(queue.topic, queue.queue_id)
        end = seen.max_offset
        if start >= end:
            continue
        if start < seen.min_offset:
            raise OffsetOutOfRange(
                f"{seen.topic}/{seen.queue_id} holds offsets [{seen.min_offset}, {end}): those from {start} on were "
                "deleted before they were read",
                next_offset=seen.min_offset,
            )
        for message in seen.read(start, count=left):
            yield message
            left -= 1
        if not left:
            return
        start = end
