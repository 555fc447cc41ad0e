"""Stores of every kind, damaged in one to five ways and repaired: an oracle that knows what was put judges."""

import re
from collections import Counter
from pathlib import Path

from store.damage import GIVEN, KINDS, Oracle, Original, inflict, unit_bytes
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.store.opening import open_store
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import RepairPlan, plan_repair
from stratalog.tools.verify import verify
from torture.report import Row, Torture

CASE_SECONDS = 60.0
FOREIGN = "of another store"
MOVED = re.compile(r"swapped|\bover that at\b")
"""Damage after which all records of a log file may be another file's."""
Stores = dict[tuple[str, bool], list[Original]]


def repairs(torture: Torture, row: Row) -> None:
    counts: Counter[str] = Counter()
    stores: Stores = {
        (kind, record_crc): [
            Original(torture.place(f"{kind}-{record_crc}-{seed}") / "store", kind, record_crc=record_crc, seed=seed)
            for seed in (1, 2)
        ]
        for kind in KINDS
        for record_crc in ((False, True) if torture.full else (False,))
    }
    for number in range(torture.count(30, 1_000)):
        if torture.wants(number):
            with row.case(number, seconds=CASE_SECONDS):
                _case(torture, number, stores, counts)
    row.notes.append(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))


def _case(torture: Torture, number: int, stores: Stores, counts: "Counter[str]") -> None:
    chance = torture.chance("repair", number)
    original, other = chance.sample(stores[chance.choice(sorted(stores))], 2)
    root = original.copy(torture.place("repaired") / "store")
    done = inflict(original, root, chance, other)
    what = f"{original.kind}{' with record CRC' if original.record_crc else ''}: {'; '.join(done)}"
    try:
        _judge(original, root, done, counts)
        if not number % 2:
            _judge_rebuild(torture, number, stores)
    except Exception as error:
        raise type(error)(f"[{what}] {error}") from error


def _judge(original: Original, root: Path, done: list[str], counts: "Counter[str]") -> None:
    oracle, is_mixed = Oracle(original, root), any(FOREIGN in text for text in done)
    try:
        plan = plan_repair(root, settings=GIVEN)
    except CorruptData as error:
        is_moved = "its records are those of" in str(error) and any(MOVED.search(text) for text in done)
        if (FOREIGN in str(error) and is_mixed) or is_moved or ("not one whole" in str(error) and not oracle.intact):
            counts["stores refused"] += 1
            return
        raise
    report = repair(plan)
    if is_mixed and not report.ok:
        return  # it says so
    assert report.ok, report.problems[:2]
    assert not plan.unmended, plan.unmended
    unknown = None if is_mixed else oracle.check(root, plan)  # no queue is left to tell which file is right
    again = plan_repair(root, settings=GIVEN)
    assert not again.actions, again.actions[:2]
    kept, left = (plan.whole_count, plan.message_count), (again.whole_count, again.message_count)
    assert kept == left, f"{kept} records and messages reported as kept, {left} are there"
    _check_offsets(root, plan)
    counts["messages lost"] += plan.lost_count
    counts["records restored"] += plan.mended_count
    counts["stores with messages that nothing names"] += unknown is not None


def _check_offsets(root: Path, plan: RepairPlan) -> None:
    """No offset of a lost message is given again, in its queue or in a light one."""
    ends: dict[tuple[str, int], int] = {}
    for topic, queue_id, _, end in plan.lost_ranges:
        ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), end)
    with open_store(root, settings=GIVEN) as store:
        next_offsets = {key: store.queue(*key).max_offset for key in ends}
    given = {key: (next_offsets[key], end) for key, end in ends.items() if next_offsets[key] < end}
    assert not given, f"offsets of lost messages are given again (next, lost up to): {given}"


def _judge_rebuild(torture: Torture, number: int, stores: Stores) -> None:
    """The same damage, and `rebuild` alone: it refuses, or everything that units led to is served, and everything that
    a crash kept from its queue; and no problem is left that it is there for (but beside damage in the log)."""
    chance = torture.chance("repair", number)
    original, other = chance.sample(stores[chance.choice(sorted(stores))], 2)
    root = original.copy(torture.place("rebuilt") / "store")
    if any(FOREIGN in text for text in inflict(original, root, chance, other)):
        return
    oracle = Oracle(original, root)
    after = _not_written_yet(original, oracle, root)
    try:
        damages = rebuild(root, settings=GIVEN).damages
    except StratalogError:
        return
    left = [problem for problem in verify(root, settings=GIVEN).problems if problem.part in ("queue", "index")]
    assert damages or not left, left[:2]
    oracle.check_served(root, oracle.intact & (oracle.led | after))


def _not_written_yet(original: Original, oracle: Oracle, root: Path) -> set[int]:
    """Log offsets of the records after the last one that the units of their queue lead to, in queues whose units are as
    they were."""
    units, reached = unit_bytes(root), dict[str, int]()
    odd = {queue for (queue, layout, at), unit in units.items() if original.units.get((queue, layout, at)) != unit}
    for queue, layout, at in units.keys() & original.units.keys():
        found = (BATCH_UNIT if layout == BATCH_UNIT.name else UNIT).unpack(units[queue, layout, at])
        reached[queue] = max(reached.get(queue, -1), found.commit_log_offset)
    after = set()
    for put in original.puts:
        tree = BATCH_CONSUME_QUEUE if put.record.topic == b"batches" else CONSUME_QUEUE
        queue = f"{tree}/{put.record.topic.decode()}/{put.record.queue_id}"
        if queue not in odd and put.offset > reached.get(queue, -1):
            after.add(put.offset)
    return after
