"""Step 5 of the demo: three questions to the tier, each with its latency and the reads it took."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stratalog.cli.demo.flights import QUEUES, TOPIC
from stratalog.cli.demo.journal import Journal, Lookup
from stratalog.cli.demo.write import ASKED_QUEUE
from stratalog.cli.output import clean, time_text
from stratalog.errors import CorruptData, counted

if TYPE_CHECKING:
    from stratalog.store.message import Message
    from stratalog.tiered import TieredStore

OFFSET = 100_000
READ_COUNT = 1_000
FLIGHTS_MAX = 2_000
"""No aircraft flew more often in a year."""

_T = TypeVar("_T")


def look_up(tier: Path, journal: Journal) -> list[Lookup]:
    """Ask the tier and print the answers. Each question is asked of a tier just opened: no cache in process helps."""
    lookups = [_read_queue(tier), _find_aircraft(tier), _find_time(tier, journal)]
    for lookup in lookups:
        question, answer, latency, _, size = lookup.row()
        print(f"      {question:<30}{latency:>9}  {counted(lookup.reads, 'read'):>10}  {size:>7}\n        {answer}")
    return lookups


def _ask(tier: Path, ask: Callable[["TieredStore"], _T]) -> tuple[_T, float, int, int]:
    """The answer, seconds, ranged reads and bytes read."""
    from stratalog import tiered

    with tiered.open(tier) as opened:
        before, begin = opened.stats, time.perf_counter()
        answer = ask(opened)
        seconds, after = time.perf_counter() - begin, opened.stats
    return answer, seconds, after.reads - before.reads, after.bytes_read - before.bytes_read


def _read_queue(tier: Path) -> Lookup:
    def ask(opened: "TieredStore") -> tuple[int, list["Message"]]:
        queue = opened.queue(TOPIC, ASKED_QUEUE)
        first = OFFSET if queue.max_offset > OFFSET else queue.max_offset // 2
        return first, list(queue.read(first, count=READ_COUNT))

    (first, messages), seconds, reads, size = _ask(tier, ask)
    answer = f"{counted(len(messages), 'flight')}, first {_told(messages[0])}"
    return Lookup(f"{QUEUES[ASKED_QUEUE]} from offset {first:,}", answer, len(messages), size, seconds, reads)


def _find_aircraft(tier: Path) -> Lookup:
    from stratalog import tiered

    with tiered.open(tier) as opened:
        aircraft = next(message.keys[-1] for message in opened.queue(TOPIC, 0).read(count=READ_COUNT))
    found, seconds, reads, size = _ask(tier, lambda opened: opened.query(TOPIC, key=aircraft, limit=FLIGHTS_MAX))
    first = min(found, key=lambda message: message.born_timestamp)
    answer = f"{counted(len(found), 'flight')}, first {_told(first)}"
    return Lookup(f"aircraft {clean(aircraft)} by key", answer, len(found), size, seconds, reads)


def _find_time(tier: Path, journal: Journal) -> Lookup:
    moment = journal.bulk_timestamp_ms
    offset, seconds, reads, size = _ask(tier, lambda opened: opened.queue(TOPIC, ASKED_QUEUE).offset_at(moment))
    if offset != journal.bulk_first_offset:
        raise CorruptData(
            f"the tier has offset {offset:,} for the time {time_text(moment)}, it should be "
            f"{journal.bulk_first_offset:,}; remove {tier.parent} and begin again",
            path=str(tier),
            position=0,
        )
    answer = f"offset {offset:,}, the first flight that came by Arrow"
    question = f"{QUEUES[ASKED_QUEUE]} at {time_text(moment).partition(' ')[2]}"
    return Lookup(question, answer, 1, size, seconds, reads)


def _told(message: "Message") -> str:
    """A flight in a few words: `B6725 JFK→BQN on 2013-01-01`."""
    row = json.loads(message.body)
    day = f"{row['year']}-{row['month']:02d}-{row['day']:02d}"
    return clean(f"{row['carrier']}{row['flight']} {row['origin']}→{row['dest']} on {day}")
