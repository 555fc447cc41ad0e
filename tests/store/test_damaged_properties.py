"""Damage that begins in a record's properties and runs into the next record: the first one stays, and is named.

Its body is whole. No checksum covers its properties: what was overwritten may be tags, keys or light queues.
"""

import random
from pathlib import Path

import pytest

from store.kinds import EXTENDED, KINDS, LIGHT_KIND, PLAIN, SIZES, Kind, read_on
from stratalog.config.settings import StoreSettings
from stratalog.layout.javahash import string_hash
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import Record, decode_record
from stratalog.layout.properties import KEYS, TAGS, find_property, may_be_overwritten
from stratalog.layout.queue import UNIT
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import RepairPlan, plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_report import VerifyReport

LOG = Path("commitlog") / ("0" * 20)
HEAD_ONLY, WHOLE = 30, 10_000
FILLINGS = {"zeros": bytes(WHOLE), "ones": b"\xff" * WHOLE, "noise": random.Random(32).randbytes(WHOLE)}
READ = [name.encode() for name in (TAGS, KEYS, MULTI_DISPATCH)]


class Damaged:
    """A store with such damage: of `records`, the one numbered `which` loses its last `left_out` bytes."""

    def __init__(self, kind: Kind, root: Path, which: int, left_out: int, filling: str, reach: int, count: int = 8):
        self.root, self.settings = root, StoreSettings.make({**SIZES, **kind.settings})
        self.content = kind.made(root, count=count)
        data = bytearray((root / LOG).read_bytes())
        places = {known.commit_log_offset for queue in self.content.queues.values() for known in queue.values()}
        records = [decode_record(bytes(data), place) for place in sorted(places)]
        self.put = records[which]
        end = self.put.commit_log_offset + self.put.total_size
        if left_out > len(self.put.properties):
            pytest.skip("the properties are shorter")
        following = records[which + 1].total_size if -1 < which < len(records) - 1 else 100
        self.stretch = FILLINGS[filling][: left_out + min(reach, following)]
        data[end - left_out : end - left_out + len(self.stretch)] = self.stretch
        (root / LOG).write_bytes(data)
        self.stretch = self.stretch[:left_out]
        self.stored = decode_record(bytes(data), self.put.commit_log_offset)

    @property
    def place(self) -> tuple[str, int, int]:
        return self.put.topic.decode(), self.put.queue_id, self.put.queue_offset

    @property
    def can_be_told(self) -> bool:
        """Whether what is read of the properties has changed; bytes that are text are not told apart from others."""
        is_same = all(find_property(self.stored.properties, n) == find_property(self.put.properties, n) for n in READ)
        return not is_same and may_be_overwritten(self.stretch.join((b"n\1", b"\2")))

    def seen(self) -> tuple[VerifyReport, RepairPlan]:
        return verify(self.root, settings=self.settings), plan_repair(self.root, settings=self.settings)


def _names(places: list[tuple[str, int, int, int]], record: Record) -> bool:
    return (record.topic.decode(), record.queue_id, record.queue_offset) in [place[:3] for place in places]


@pytest.mark.one_in(540)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("reach", [HEAD_ONLY, WHOLE], ids=["head", "record"])
@pytest.mark.parametrize("which", [0, 4, 6, -1])
@pytest.mark.parametrize("left_out", range(88))
def test_a_record_whose_properties_are_damaged_is_named(
    left_out: int, which: int, reach: int, filling: str, kind: Kind, tmp_path: Path
) -> None:
    damaged = Damaged(kind, tmp_path, which, left_out, filling, reach)
    report, plan = damaged.seen()
    is_verified, is_planned = (_names(one.damaged_properties, damaged.put) for one in (report, plan))
    lost = {message.all_places[0][:3] for message in plan.lost}
    assert is_verified or not damaged.can_be_told
    assert is_planned or not damaged.can_be_told or damaged.place in lost
    assert not is_planned or damaged.place not in lost
    assert left_out or not report.damaged_properties
    assert len(report.damaged_properties) <= 1


@pytest.mark.parametrize("kind", [PLAIN, LIGHT_KIND], ids=str)
def test_the_unit_tells_that_a_legible_byte_of_tags_was_overwritten(kind: Kind, tmp_path: Path) -> None:
    damaged = Damaged(kind, tmp_path, 4, 1, "zeros", HEAD_ONLY)
    at = damaged.put.commit_log_offset + damaged.put.total_size
    data = bytearray((tmp_path / LOG).read_bytes())
    data[at - 1 : at] = b"\2"
    tags = data.index(b"TAGS\1", damaged.put.commit_log_offset) + 5
    data[tags : tags + 1] = b"z"
    (tmp_path / LOG).write_bytes(data)
    report, plan = damaged.seen()
    assert _names(report.damaged_properties, damaged.put)
    assert _names(plan.damaged_properties, damaged.put)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_record_that_is_named_stays_and_is_not_named_again(kind: Kind, tmp_path: Path) -> None:
    damaged = Damaged(kind, tmp_path, 4, 3, "noise", WHOLE)
    plan = damaged.seen()[1]
    assert repair(plan).ok
    with kind.open(tmp_path, mode="r") as store:
        found = read_on(store.queue(*damaged.place[:2]))[0]
    assert _names(plan.damaged_properties, damaged.put) == (damaged.place[2] in found)
    report, again = damaged.seen()
    assert not report.damaged_properties
    assert not again.damaged_properties
    assert not again.actions


@pytest.mark.one_in(30)
@pytest.mark.parametrize("bit", range(8 * len(b"TAGS\1a\2")))
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_record_of_which_a_bit_of_the_tags_was_flipped_is_named(kind: Kind, bit: int, tmp_path: Path) -> None:
    """But where the unit may be the one that was flipped (the hashes of the tags differ in one bit), and where an
    extension has the hash: it may be another queue's."""
    content, settings = kind.made(tmp_path, count=6), StoreSettings.make({**SIZES, **kind.settings})
    places = sorted(known.commit_log_offset for queue in content.queues.values() for known in queue.values())
    data = bytearray((tmp_path / LOG).read_bytes())
    put = decode_record(bytes(data), places[2])
    if b"TAGS\1" not in put.properties:
        pytest.skip("a batch without tags")
    data[data.index(b"TAGS\1", places[2] + put.total_size - len(put.properties)) + bit // 8] ^= 1 << bit % 8
    (tmp_path / LOG).write_bytes(data)
    stored = decode_record(bytes(data), places[2])
    hashes = [string_hash(find_property(one.properties, b"TAGS") or "") for one in (put, stored)]
    is_told = (hashes[0] ^ hashes[1]).bit_count() > 1 and kind is not EXTENDED
    report = verify(tmp_path, settings=settings)
    assert _names(report.damaged_properties, put) == is_told
    assert len(report.damaged_properties) == is_told
    plan = plan_repair(tmp_path, settings=settings)
    assert plan.damaged_properties == report.damaged_properties
    assert repair(plan).ok
    assert not verify(tmp_path, settings=settings).damaged_properties


@pytest.mark.one_in(30)
@pytest.mark.parametrize(
    "damage", [*range(64), *(slice(0, end) for end in range(1, 9)), *map(slice, range(1, 8))], ids=str
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_damaged_tags_code_is_no_damage_of_the_record(kind: Kind, damage: int | slice, tmp_path: Path) -> None:
    kind.made(tmp_path, count=6)
    unit_file = kind.files(tmp_path, kind.queues[0])[0]
    data, at = bytearray(unit_file.read_bytes()), kind.layout.position("tags_code")
    if isinstance(damage, slice):
        code = data[at : at + 8]
        code[damage] = bytes(len(code[damage]))
        data[at : at + 8] = code
    else:
        data[at + damage // 8] ^= 1 << damage % 8
    unit_file.write_bytes(data)
    settings = StoreSettings.make({**SIZES, **kind.settings})
    assert not verify(tmp_path, settings=settings).damaged_properties
    assert repair(plan_repair(tmp_path, settings=settings)).ok


def test_a_healthy_record_with_odd_properties_is_not_named(tmp_path: Path) -> None:
    with PLAIN.open(tmp_path) as store:
        for properties in (b"", b"\xff\xfe", b"no separator", b"TAGS\1a\2KEYS\1k"):
            store.queue("topic", 0).put_raw(b"body", properties)
            assert not verify(tmp_path).damaged_properties
    assert not verify(tmp_path).damaged_properties


def test_a_damaged_unit_of_the_newest_record_is_no_damage_of_its_properties(tmp_path: Path) -> None:
    PLAIN.made(tmp_path, count=1)
    (unit_file,) = PLAIN.files(tmp_path, PLAIN.queues[0])
    data = bytearray(unit_file.read_bytes())
    data[UNIT.size - 1] ^= 1
    unit_file.write_bytes(data)
    report = verify(tmp_path, settings=StoreSettings.make(SIZES))
    assert not report.ok
    assert not report.damaged_properties
