"""Following a topic in a store that another process writes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from stratalog.cli.intact import Intact, begin_of
from stratalog.cli.output import complain, tell
from stratalog.cli.place import open_local
from stratalog.store.following import is_replaced, message_before, replaced_text, views
from stratalog.store.message import Message


def follow(
    root: Path, topic: str, queue_id: int | None, *, last: int, given: Sequence[str] | None = None,
    intact: Intact | None = None,
) -> Iterator[Message]:  # fmt: skip
    """The last messages of a topic's queues, then new ones, without end. Queues that come later are taken in.
    Where the store is replaced by another, that is said on stderr, and its last messages follow."""
    intact = intact or Intact()
    read: dict[int, tuple[int, Message | None]] = {}
    with open_local(root, given=given) as store:
        for view in views(store):
            for name, number in view.queues():
                if name != topic or queue_id not in (None, number):
                    continue
                queue = view.queue(topic, number)
                low, end = begin_of(queue), queue.max_offset
                start, before = read.get(number, (max(low, end - last) if view is store else low, None))
                if is_replaced(queue, start, before):
                    complain(f"{replaced_text(queue, start)}. Its last messages follow")
                    start = max(low, end - last)
                if start < low:
                    intact.miss(low - start, f"{topic}/{number}: offsets {start:,} to {low - 1:,} were deleted")
                if number not in read:
                    intact.name_lost_end(queue)
                yield from intact.read(queue, max(start, low))
                read[number] = end, message_before(queue, end)
            if view is store and not read:
                name = f"topic {topic}" if queue_id is None else f"queue {topic}/{queue_id}"
                tell(f"there is no {name} yet; waiting for its first message")
