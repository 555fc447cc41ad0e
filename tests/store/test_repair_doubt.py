"""`repair` invents nothing: a message in the wrong place is not served, one that is intact is not moved, and what is in
doubt is reported."""

import random
import shutil
import struct
from pathlib import Path
from typing import Any, Literal

import pytest

import stratalog
from store.kinds import EXTENDED, KINDS, PLAIN, SIZES, Content, Kind, read_on
from store.test_recreated_topics import STATES, walked
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD, decode_record
from stratalog.layout.queue import BATCH_UNIT
from stratalog.layout.sysflag import SysFlag
from stratalog.store.message_store import MessageStore
from stratalog.store.record_put import Receipt
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_fill import LOST_FLAG
from stratalog.tools.repair_plan import RepairPlan, plan_repair
from stratalog.tools.verify import verify

Key = tuple[str, int, int]
RECORD_SIZE = 128


def opened(root: Path, mode: Literal["r", "w"] = "w", **settings: Any) -> MessageStore:
    return stratalog.open(
        root, mode=mode, small=mode == "w", enable_lmq=True, enable_multi_dispatch=True, **settings
    )  # fmt: skip


def served(root: Path) -> dict[Key, bytes]:
    """The bodies that are read, without placeholders."""
    found: dict[Key, bytes] = {}
    with opened(root, "r") as store:
        for topic, queue_id in store.queues():
            start = store.queue(topic, queue_id).min_offset
            while True:
                try:
                    for message in store.queue(topic, queue_id).read(start):
                        start = message.queue_offset + 1
                        if message.flag != LOST_FLAG:
                            found[topic, queue_id, message.queue_offset] = message.body
                    break
                except CorruptData as error:
                    start = error.next_offset
    return found


def log_path(root: Path) -> Path:
    return root / "commitlog" / ("0" * 20)


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def mended(root: Path, put: dict[Key, bytes]) -> RepairPlan:
    """Repair, and look at what every repair must keep to."""
    before = served(root)
    plan = plan_repair(root)
    report = repair(plan)
    after = served(root)
    lost = {
        (message.topic, message.queue_id, message.queue_offset + number)
        for message in plan.lost for number in range(message.message_count)
    }  # fmt: skip
    assert report.ok, report.problems[:2]
    assert not plan_repair(root).actions
    assert not lost & after.keys()
    assert lost <= put.keys()
    right = {key for key in before if before[key] == put[key]}
    assert {key for key in right if after.get(key) != put[key]} <= lost
    return plan


def wrong(root: Path, put: dict[Key, bytes]) -> set[Key]:
    return {key for key, body in served(root).items() if put.get(key) != body}


def filled(root: Path, count: int, **settings: Any) -> list[Receipt]:
    """Messages in two queues whose records all have RECORD_SIZE bytes."""
    with opened(root, **settings) as store:
        probe = store.put("orders", b"%07d" % 0)
        missing = RECORD_SIZE - (probe.end_offset - probe.commit_log_offset)
    shutil.rmtree(root)
    with opened(root, **settings) as store:
        return [store.put("orders", b"%07d" % number + b"." * missing, queue_id=number % 2) for number in range(count)]


def without_units(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    (root / "queues.snapshot").unlink(missing_ok=True)
    (root / "checkpoint").unlink()
    (root / "abort").touch()


@pytest.mark.parametrize("has_units", [True, False])
@pytest.mark.parametrize("is_swapped", [True, False])
@pytest.mark.parametrize("size", [512, 4096])
def test_records_of_a_block_that_was_written_to_the_wrong_place_are_lost_not_readdressed(
    size: int, is_swapped: bool, has_units: bool, tmp_path: Path
) -> None:
    filled(tmp_path, 200)
    put, data = served(tmp_path), log_path(tmp_path).read_bytes()
    one, other = 2048, 2048 + 2 * size
    change(log_path(tmp_path), other, data[one : one + size])
    if is_swapped:
        change(log_path(tmp_path), one, data[other : other + size])
    if not has_units:
        without_units(tmp_path)
    plan = mended(tmp_path, put)
    assert not wrong(tmp_path, put)
    assert (plan.lost_count, plan.mended_count) == (size // RECORD_SIZE * (1 + is_swapped), 0)
    assert len(served(tmp_path)) + plan.lost_count == len(put)


def test_a_shorter_record_with_a_record_crc_is_not_stretched_over_a_longer_one(tmp_path: Path) -> None:
    with opened(tmp_path, enabled_append_prop_crc=True) as store:
        receipts = [store.put("orders", b"x" * (40 if number == 3 else 30) + b"%d" % number, tags="t")
                    for number in range(20)]  # fmt: skip
    put, data = served(tmp_path), log_path(tmp_path).read_bytes()
    source = receipts[12]
    change(
        log_path(tmp_path), receipts[3].commit_log_offset, data[source.commit_log_offset : source.end_offset]
    )  # fmt: skip
    assert mended(tmp_path, put).lost_count == 1
    assert not wrong(tmp_path, put)


def test_light_queues_keep_what_they_serve_when_records_are_swapped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        receipts = [
            store.put("parent", b"%03d" % number, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
            for number in range(10, 50)
        ]  # fmt: skip
    put, data = served(tmp_path), log_path(tmp_path).read_bytes()
    for to, source in ((15, 30), (30, 15)):
        at = receipts[source]
        change(
            log_path(tmp_path), receipts[to].commit_log_offset, data[at.commit_log_offset : at.end_offset]
        )  # fmt: skip
    plan = plan_repair(tmp_path)
    assert repair(plan).ok
    gone = {("parent", 0, 15), ("parent", 0, 30), ("%LMQ%a", 0, 15), ("%LMQ%a", 0, 30)}
    assert put.items() - served(tmp_path).items() == {(key, put[key]) for key in gone}
    assert [(message.queue_offset, message.places) for message in plan.lost] == [
        (15, (("%LMQ%a", 15),)), (30, (("%LMQ%a", 30),))
    ]  # fmt: skip


def test_a_restored_record_is_not_reported_lost_in_its_light_queue(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        receipts = [store.put("parent", b"x%d" % n, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}) for n in range(10)]
    put = served(tmp_path)
    change(log_path(tmp_path), receipts[4].commit_log_offset + HEAD.position("magic"), bytes(4))
    assert mended(tmp_path, put).lost == []
    assert served(tmp_path) == put


def test_without_units_an_intact_record_is_not_moved_into_the_place_of_a_changed_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        receipts = [store.put("orders", b"%d" % number) for number in range(28)]
    put = served(tmp_path)
    without_units(tmp_path)
    at = receipts[26].commit_log_offset + HEAD.position("queue_offset")
    change(log_path(tmp_path), at, struct.pack(">q", 6))
    assert mended(tmp_path, put).lost == []
    assert served(tmp_path) == put


@pytest.mark.parametrize("changed", [18, 19])
def test_of_two_records_in_one_place_none_is_moved_and_one_is_set_aside(changed: int, tmp_path: Path) -> None:
    receipts = filled(tmp_path, 20)
    without_units(tmp_path)
    at = receipts[changed].commit_log_offset + HEAD.position("queue_id")
    change(log_path(tmp_path), at, struct.pack(">i", 1 - changed % 2))
    before = served(tmp_path)
    plan = plan_repair(tmp_path)
    assert repair(plan).ok
    assert served(tmp_path) == before
    assert (plan.message_count, plan.lost_count, len(plan.unplaced)) == (19, 0, 1)
    assert not plan_repair(tmp_path).actions


def batches(root: Path, count: int = 6, **settings: Any) -> list[Receipt]:
    with opened(root, **settings) as store:
        store.create_topic("batches", queues=1, queue_type="BatchCQ")
        queue = store.queue("batches", 0)
        return [queue.put_batch([b"%d-%d" % (n, member) for member in range(3)], unique_key=f"u{n}")
                for n in range(count)]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["__CRC32#", "INNER_NUM", "INNER_BASE"])
@pytest.mark.parametrize("record_crc", [False, True])
def test_a_bit_in_a_property_that_the_store_reads_costs_no_message(
    name: str, record_crc: bool, tmp_path: Path
) -> None:  # fmt: skip
    receipts = batches(tmp_path / "original", enabled_append_prop_crc=record_crc)
    put, data = served(tmp_path / "original"), log_path(tmp_path / "original").read_bytes()
    for number in (2, 5):
        begin = data.find(name.encode(), receipts[number].commit_log_offset, receipts[number].end_offset)
        for at in range(begin, begin + len(name), 3) if begin >= 0 else ():
            root = tmp_path / "store"
            shutil.copytree(tmp_path / "original", root)
            change(log_path(root), at, bytes([data[at] ^ 1 << at % 8]))
            assert mended(root, put).lost_count == 0, (number, data[at])
            assert served(root) == put
            shutil.rmtree(root)


def turn_flag(root: Path, commit_log_offset: int, bit: int) -> None:
    at = commit_log_offset + HEAD.position("sys_flag") + 3
    change(log_path(root), at, bytes([log_path(root).read_bytes()[at] ^ bit]))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bit", [SysFlag.NEED_UNWRAP, SysFlag.INNER_BATCH, SysFlag.COMPRESSED])
@pytest.mark.parametrize("number", [2, 5])
@pytest.mark.parametrize("with_units", [True, False])
def test_a_bit_in_the_flags_of_a_batch_hides_it_as_a_whole_and_costs_no_message(
    bit: int, number: int, with_units: bool, tmp_path: Path
) -> None:
    receipts = batches(tmp_path)
    put, place = served(tmp_path), 3 * number
    turn_flag(tmp_path, receipts[number].commit_log_offset, bit)
    if not with_units:
        shutil.rmtree(tmp_path / "batchconsumequeue" / "batches" / "0")
    for act in (rebuild, None):
        if with_units:
            with opened(tmp_path, "r") as store:
                assert list(store.query("batches", key=f"u{number}")) == []
                with pytest.raises(CorruptData) as caught:
                    list(store.queue("batches", 0).read(place))
            assert caught.value.next_offset == place + 3
            assert {key[2] for key in put.keys() - served(tmp_path).keys()} == {place, place + 1, place + 2}
        (problem,) = [problem for problem in verify(tmp_path).problems if problem.part == "log"]
        assert "contradicts itself" in problem.found
        assert "repair" in problem.next_step
        if act:
            act(tmp_path)
    plan = mended(tmp_path, put)
    assert (plan.lost, plan.mended_count) == ([], 1)
    assert served(tmp_path) == put


def test_a_batch_that_nobody_can_take_apart_is_reported_lost(tmp_path: Path) -> None:
    receipts = batches(tmp_path)
    put = served(tmp_path)
    turn_flag(tmp_path, receipts[2].commit_log_offset, SysFlag.INNER_BATCH)
    turn_flag(tmp_path, receipts[2].commit_log_offset, SysFlag.COMPRESSED)
    plan = mended(tmp_path, put)
    assert [(lost.queue_offset, lost.message_count) for lost in plan.lost] == [(6, 3)]
    assert served(tmp_path) == {key: body for key, body in put.items() if key[2] not in (6, 7, 8)}


def test_one_message_with_the_flag_of_a_batch_is_one_message_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("batches", queues=1, queue_type="BatchCQ")
        receipts = [store.put("batches", b"%d" % number, queue_id=0) for number in range(4)]
    put = served(tmp_path)
    turn_flag(tmp_path, receipts[2].commit_log_offset, SysFlag.INNER_BATCH)
    assert sorted(put.keys() - served(tmp_path).keys()) == [("batches", 0, 2)]
    assert mended(tmp_path, put).lost == []
    assert served(tmp_path) == put


def test_rebuild_refuses_a_batch_that_would_cover_fewer_messages(tmp_path: Path) -> None:
    receipts = batches(tmp_path)
    put, data = served(tmp_path), log_path(tmp_path).read_bytes()
    at = data.index(b"INNER_NUM\x013", receipts[2].commit_log_offset) + 10
    change(log_path(tmp_path), at, b"2")
    with pytest.raises(CorruptData, match="repair"):
        rebuild(tmp_path)
    assert mended(tmp_path, put).lost == []
    assert served(tmp_path) == put


def test_a_lost_message_of_a_batch_topic_that_is_too_short_for_a_placeholder_is_stepped_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("batches", queues=1, queue_type="BatchCQ")
        receipts = [store.put("batches", b"%d" % number, queue_id=0) for number in range(10)]
    put, lost = served(tmp_path), receipts[4]
    change(log_path(tmp_path), lost.commit_log_offset, bytes(lost.end_offset - lost.commit_log_offset))
    mended(tmp_path, put)
    with opened(tmp_path, "r") as store:
        found = [message.queue_offset for message in store.queue("batches", 0).read()]
    assert found == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert verify(tmp_path).ok


@pytest.mark.parametrize("position", ["commit_log_offset", "base_offset", "both"])
@pytest.mark.parametrize("is_crashed", [True, False])
def test_a_unit_that_no_log_can_have_led_to_costs_no_message(position: str, is_crashed: bool, tmp_path: Path) -> None:
    batches(tmp_path, 20)
    put = served(tmp_path)
    (unit,) = (tmp_path / "batchconsumequeue" / "batches" / "0").iterdir()
    for name, value in (("commit_log_offset", 0x0123456789AB), ("base_offset", 2751443742068041618)):
        if position in (name, "both"):
            change(unit, 19 * BATCH_UNIT.size + BATCH_UNIT.position(name), struct.pack(">q", value))
    if is_crashed:
        (tmp_path / "queues.snapshot").unlink(missing_ok=True)
        (tmp_path / "abort").touch()
    assert mended(tmp_path, put).lost == []
    assert served(tmp_path) == put


@pytest.mark.parametrize(
    ("true", "wrong", "with_units"),
    [
        (b"24", b"26", True), (b"24", b"26", False), (b"24", b"20", True), (b"24", b"20", False), (b"24", b"64", True),
        (b"7", b"5", True), (b"7", b"5", False), (b"7", b"9", True), (b"7", b"9", False),
    ],
)  # fmt: skip
def test_a_record_with_another_offset_in_a_light_queue_gets_its_own_back(
    true: bytes, wrong: bytes, with_units: bool, tmp_path: Path
) -> None:
    """A queue that is built of the wrong one would leave out the messages after it."""
    root = tmp_path / "store"
    with opened(root) as store:
        for number in range(40):
            store.put("parent", b"m%d" % number, properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
    before, whole = served(root), log_path(root).read_bytes()
    name = b"INNER_MULTI_QUEUE_OFFSET\x01"
    at = whole.index(name + true + b"," + true) + len(name)
    change(log_path(root), at, wrong)
    if not with_units:
        shutil.rmtree(root / "consumequeue")
        (root / "consumequeue/%LMQ%a").mkdir(parents=True)
    repair(plan_repair(root))
    assert log_path(root).read_bytes() == whole
    assert served(root) == before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrong", [b"26", b"20", b"64"])
@pytest.mark.parametrize("own", [0, 3, 8, 26, 70])
def test_a_record_with_other_offsets_in_all_its_queues_gets_them_back(own: int, wrong: bytes, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        dispatch = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
        receipts = [store.put("parent", b"m%d" % number, properties=dispatch) for number in range(40)]
    before, whole = served(root), log_path(root).read_bytes()
    name = b"INNER_MULTI_QUEUE_OFFSET\x01"
    change(log_path(root), whole.index(name + b"24,24") + len(name), wrong)
    change(log_path(root), receipts[24].commit_log_offset + HEAD.position("queue_offset"), struct.pack(">q", own))
    repair(plan_repair(root))
    assert log_path(root).read_bytes() == whole
    assert served(root) == before


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("topic", "size"), [("plain", 1), ("plain", 200), ("%LMQ%a", 1), ("%LMQ%a", 200), ("batches", 200)]
)
def test_what_a_repair_put_for_a_lost_message_is_passed_over(
    topic: str, size: int, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a placeholder and where there was no room for one; a page holds as many messages as were asked for."""
    root = tmp_path / "store"
    with opened(root) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        name = "parent" if topic.startswith("%") else topic
        given = {"INNER_MULTI_DISPATCH": topic} if topic.startswith("%") else {}
        lost = [store.put(name, b"%d" % n * size, properties=given) for n in range(9)][4]
    change(log_path(root), lost.commit_log_offset, bytes(lost.store_size))
    repair(plan_repair(root))
    if not native:
        monkeypatch.setattr("stratalog.store.reading.ready_or_started", lambda: False)
    with opened(root, "r") as store:
        queue = store.queue(topic)

        def page(first: int, count: int) -> list[int]:
            return [message.queue_offset for message in queue.read(first, count=count)]

        assert page(0, 20) == [0, 1, 2, 3, 5, 6, 7, 8]
        assert page(4, 1) == [5]
        assert page(2, 3) == [2, 3, 5]
        assert page(4, 4) == [5, 6, 7, 8]


@pytest.mark.parametrize(("stored", "is_restored"), [(0x30, True), (0x1E9BBAB0, False), (0x15AACB, False)])
def test_flags_that_no_release_knows_are_not_restored(tmp_path: Path, stored: int, is_restored: bool) -> None:
    """Hosts of another length than the record has, and a wrong log offset: those bits can be mended, garbage cannot."""
    root = tmp_path / "store"
    with opened(root) as store:
        receipts = [store.put("orders", b"%d" % number * 20) for number in range(3)]
    put = served(root)
    at = receipts[1].commit_log_offset + HEAD.position("sys_flag")
    change(log_path(root), at, stored.to_bytes(4))
    change(log_path(root), at - 1, b"\x7f")  # its log offset
    plan = plan_repair(root)
    assert (plan.mended_count, plan.lost_count) == (int(is_restored), int(not is_restored))
    assert repair(plan).ok
    assert served(root).items() == put.items() - (set() if is_restored else {(("orders", 0, 1), put["orders", 0, 1])})


@pytest.mark.parametrize("topic", ["orders", "batches"])
def test_a_record_that_garbage_in_its_flags_keeps_from_its_queue_is_reported_lost(topic: str, tmp_path: Path) -> None:
    """The bits say that it was rolled back: no reader, and no rebuild, looks at it."""
    root = tmp_path / "store"
    with opened(root) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        receipts = [store.put(topic, b"%d" % number * 20) for number in range(5)]
    put = served(root)
    change(log_path(root), receipts[2].commit_log_offset + HEAD.position("sys_flag"), (0x15CFA12E).to_bytes(4))
    plan = plan_repair(root)
    assert [(lost.topic, lost.queue_offset) for lost in plan.lost] == [(topic, 2)]
    assert repair(plan).ok
    assert served(root).items() == put.items() - {((topic, 0, 2), put[topic, 0, 2])}


@pytest.mark.parametrize(("number", "crashed"), [(4, False), (4, True), (8, False)])
def test_a_zero_in_the_place_of_the_last_separator_costs_no_message(number: int, crashed: bool, tmp_path: Path) -> None:
    """In a store that was closed no record is torn, nor is one that a whole record follows: the body is whole."""
    root = tmp_path / "store"
    with opened(root) as store:
        receipts = [store.put("orders", b"%d" % n * 20, keys="k", tags="t") for n in range(9)]
    put = served(root)
    change(log_path(root), receipts[number].end_offset - 1, b"\0")
    if crashed:
        (root / "abort").touch()
    assert repair(plan_repair(root)).ok
    assert served(root) == put
    rebuild(root)
    assert served(root) == put


@pytest.mark.parametrize("topic", ["orders", "batches"])
@pytest.mark.parametrize(("added", "lost_count"), [(1 << 20, 0), (70_000, 1)], ids=["one bit", "several bits"])
def test_without_units_a_record_far_ahead_of_its_queue_is_restored_or_reported(
    topic: str, added: int, lost_count: int, tmp_path: Path
) -> None:
    """Dispatch passes over it; if repair did not, the store would stay broken."""
    root = tmp_path / "store"
    with opened(root) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        receipts = [store.put(topic, b"%d" % number * 20) for number in range(5)]
        store.put("others", b"last")
    put = served(root)
    at = receipts[4].commit_log_offset + HEAD.position("queue_offset")
    change(log_path(root), at, (receipts[4].queue_offset + added).to_bytes(8))
    for name in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("queues.snapshot", "checkpoint"):
        (root / name).unlink()
    plan = plan_repair(root)
    assert plan.lost_count + len(plan.unplaced) == lost_count
    assert repair(plan).ok
    assert not plan_repair(root).actions
    after = served(root)
    assert len(after) == len(put) - lost_count
    assert after.items() <= put.items()


def test_a_record_that_a_crash_tore_stays_damage_after_a_clean_stop(tmp_path: Path) -> None:
    """Its body is whole: nothing but the note of the damage tells it from a whole record."""
    root = tmp_path / "store"
    with opened(root) as store:
        end = store.put("orders", b"first", keys="k").end_offset
        size = store.put("orders", b"second", keys="k").end_offset - end
        torn = store.put("orders", b"t" * (len(b"second") + 2 * 512 - (end + 2 * size) % 512), keys="k")
        store.put("orders", b"last")
    assert not torn.end_offset % 512
    whole = served(root)
    change(log_path(root), torn.end_offset - 4, b"\0" * 4)
    (root / "abort").touch()
    for name in ("consumequeue", "queues.snapshot", "checkpoint"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = {place: body for place, body in whole.items() if place[2] != torn.queue_offset}
    for _ in range(3):
        with opened(root) as store:
            assert [damage.begin for damage in store.recovery.quarantined] == [torn.commit_log_offset]
            assert "RocketMQ may end the log" in store.recovery.warning
        assert served(root) == kept
        assert not verify(root).ok
    rebuild(root)
    assert served(root) == kept
    assert [(lost.topic, lost.queue_offset) for lost in plan_repair(root).lost] == [("orders", torn.queue_offset)]
    assert repair(plan_repair(root)).ok
    assert served(root).items() >= kept.items()
    assert verify(root).ok


@pytest.mark.one_in(72)
@pytest.mark.parametrize("topic", ["orders", "receipts"], ids=["of a known queue", "alone in its queue"])
@pytest.mark.parametrize("field", ["total_size", "magic", "body_crc", "commit_log_offset"])
def test_without_units_the_newest_message_with_a_turned_bit_is_restored_or_reported(
    field: str, topic: str, tmp_path: Path
) -> None:
    root, size = tmp_path / "store", HEAD.position(field)
    width = next(one.size for one in HEAD.fields if one.name == field)
    with opened(root) as store:
        for number in range(20):
            store.put("orders", b"%04d" % number * 10)
        newest = store.put(topic, b"X" * 40)
        store.put("other", b"last")
    put = served(root)
    whole = log_path(root).read_bytes()
    for bit in range(8 * width):
        shutil.copytree(root, tmp_path / "damaged")
        damaged = tmp_path / "damaged"
        shutil.rmtree(damaged / "consumequeue")
        (damaged / "queues.snapshot").unlink()
        (damaged / "abort").touch()
        at = newest.commit_log_offset + size + bit // 8
        change(log_path(damaged), at, bytes([whole[at] ^ 1 << bit % 8]))
        plan = plan_repair(damaged)
        assert repair(plan).ok
        after = served(damaged)
        is_there = put.items() <= after.items()
        assert is_there or plan.lost_count + len(plan.unplaced), f"bit {bit} of {field}"
        if not is_there and plan.lost_count:
            with opened(damaged) as store:
                assert store.put(topic, b"new").queue_offset > newest.queue_offset
        shutil.rmtree(damaged)


def next_offsets(root: Path, *topics: str) -> list[int]:
    with opened(root) as store:
        return [store.queue(topic).max_offset for topic in topics]


def test_messages_of_several_lost_files_keep_their_offsets(tmp_path: Path) -> None:
    """Each file has room for its own placeholders, and none for those of the others."""
    root, size = tmp_path / "store", 4096
    with opened(root, mapped_file_size_commit_log=size) as store:
        for number, end in ((0, size), (1, 4 * size - 1000), (0, 5 * size)):
            while store.put(("orders", "zebra")[number], b"x" * 20).commit_log_offset < end:
                pass
    put = served(root)
    for number in (1, 2, 3):
        (root / "commitlog" / f"{number * size:020d}").write_bytes(bytes(size))
    before = [1 + max(place[2] for place in put if place[0] == topic) for topic in ("orders", "zebra")]
    plan = mended(root, put)
    assert plan.lost_count > 3 * size // 150
    assert sum(action.placeholder_count for action in plan.actions) == plan.lost_count
    assert next_offsets(root, "orders", "zebra") == before


@pytest.mark.parametrize("kind", ["plain", "batch", "light"])
def test_the_offset_of_a_lost_message_too_small_for_a_placeholder_is_not_given_again(kind: str, tmp_path: Path) -> None:
    """Its placeholder comes to the log's end, where later messages of the queue will follow it."""
    root = tmp_path / "store"
    names = {"light": ("t", "%LMQ%a", "%LMQ%b")}.get(kind, ("t",))
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"} if kind == "light" else None
    with opened(root) as store:
        if kind == "batch":
            store.create_topic("t", queue_type="BatchCQ")
        receipts = [store.put("t", b"x", properties=properties) for _ in range(4)]
        store.put("other", b"last")
    put = served(root)
    change(log_path(root), receipts[3].commit_log_offset, bytes(receipts[3].store_size))
    plan = plan_repair(root)
    assert [(lost.topic, lost.queue_offset) for lost in plan.lost] == [("t", 3)]
    assert repair(plan).ok
    assert not plan_repair(root).actions
    assert next_offsets(root, *names) == [4] * len(names)
    assert served(root).items() <= put.items()
    rebuild(root)
    assert next_offsets(root, *names) == [4] * len(names)


@pytest.mark.parametrize("topic", ["t", "batches"])
def test_a_damaged_placeholder_is_restored_and_counts_as_no_message(topic: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        receipts = [store.put(topic, b"x" * 100, tags="a") for _ in range(8)]
    for number in (3, 4):
        change(log_path(root), receipts[number].commit_log_offset, bytes(receipts[number].store_size))
    first = plan_repair(root)
    assert repair(first).ok
    change(log_path(root), receipts[3].commit_log_offset + 3, b"\1")
    second = plan_repair(root)
    assert (first.message_count, second.message_count) == (6, 6)
    assert (first.whole_count, second.whole_count, second.mended_count, second.lost) == (6, 6, 0, [])
    assert repair(second).ok
    assert len(served(root)) == 6


@pytest.mark.one_in(27)
@pytest.mark.parametrize("kind", ["plain", "batch"])
@pytest.mark.parametrize("more", [-1, 0, 1, 3, 15])
@pytest.mark.parametrize("own", [2, 3, 5, 20])
def test_a_queue_file_of_another_store_tells_of_no_lost_message(tmp_path: Path, kind: str, own: int, more: int) -> None:
    """Its units lead into the log's records, not to their beginnings."""
    tree = "consumequeue" if kind == "plain" else "batchconsumequeue"
    for name, count, size in (("store", own, 60), ("other", own + more, 77)):
        with opened(tmp_path / name) as store:
            if kind == "batch":
                store.create_topic("t", queue_type="BatchCQ")
            for number in range(count):
                body = b"x" * size * (number % 7 + 1)
                store.put("t", body) if kind == "plain" else store.queue("t").put_batch([body] * 2, unique_key="u")
                store.put("u", b"y" * size * 3)
    for path in (tmp_path / "other" / tree / "t" / "0").iterdir():
        shutil.copyfile(path, tmp_path / "store" / tree / "t" / "0" / path.name)
    plan = plan_repair(tmp_path / "store")
    assert (plan.lost, plan.message_count) == ([], own * (1 if kind == "plain" else 2) + own)
    assert repair(plan).ok


@pytest.mark.parametrize("size", [2, 4])
def test_what_repair_makes_of_a_batch_record_agrees_with_itself(tmp_path: Path, size: int) -> None:
    with opened(tmp_path / "whole") as store:
        store.create_topic("bb", queue_type="BatchCQ")
        queue = store.queue("bb")
        receipts = [queue.put_batch([b"body"] * 4, tags="t", unique_key=f"U{number}") for number in range(4)]
    begin, end = receipts[2].commit_log_offset, receipts[3].commit_log_offset
    for at in range(end - 60, end - size):
        shutil.copytree(tmp_path / "whole", tmp_path / "store")
        change(log_path(tmp_path / "store"), at, bytes(size))
        plan = plan_repair(tmp_path / "store")
        assert repair(plan).ok, at - begin
        again = plan_repair(tmp_path / "store")
        assert (again.actions, again.message_count) == ([], plan.message_count), at - begin
        assert plan.message_count + plan.lost_count == 16
        shutil.rmtree(tmp_path / "store")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lost", ["nothing", "units", "first log file"])
@pytest.mark.parametrize(("field", "value"), [("sys_flag", 4), ("sys_flag", 12), ("queue_offset", 0)])
def test_a_record_whose_head_keeps_it_from_its_queue_is_restored(
    field: str, value: int, lost: str, tmp_path: Path
) -> None:
    """Units say where it belongs; without them the hole between its neighbours does."""
    size, bits = 16 * RECORD_SIZE, {"sys_flag": "i", "queue_offset": "q"}
    receipts = filled(tmp_path / "whole", 60, mapped_file_size_commit_log=size)
    begin = size if lost == "first log file" else 0
    there = [receipt for receipt in receipts if receipt.commit_log_offset >= begin]
    if lost == "units":
        without_units(tmp_path / "whole")
        there = there[4:-2]  # of the oldest and the newest of each queue nobody knows
    if begin:
        log_path(tmp_path / "whole").unlink()
    for receipt in {*there[:2], *there[2:-2:5], *there[-2:]}:
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "whole", root)
        put, (file, position) = served(root), divmod(receipt.commit_log_offset, size)
        path = root / "commitlog" / f"{file * size:020d}"
        change(path, position + HEAD.position(field), struct.pack(">" + bits[field], value))
        plan = plan_repair(root)
        assert repair(plan).ok
        assert (served(root), plan.lost) == (put, []), receipt
        shutil.rmtree(root)


def test_a_record_alone_in_a_queue_without_units_goes_where_a_unit_places_it(tmp_path: Path) -> None:
    """Also where all that stood before it is damaged, and it is the only one of its own queue."""
    size, root = 16 * RECORD_SIZE, tmp_path / "store"
    receipts = filled(root, 17, mapped_file_size_commit_log=size)
    put = served(root)
    receipt = next(receipt for receipt in receipts if receipt.commit_log_offset >= size)
    data = bytearray((path := log_path(root).with_name(f"{size:020d}")).read_bytes())
    record = decode_record(data, receipt.commit_log_offset - size)
    at = data.index(record.topic, receipt.commit_log_offset - size)
    data[at + len(record.topic) - 1] ^= 1
    path.write_bytes(data)
    log_path(root).write_bytes(b"")
    assert repair(plan_repair(root)).ok
    assert served(root).keys() <= put.keys()
    assert (record.topic.decode(), record.queue_id, record.queue_offset) in served(root)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("begin", [7, 100], ids=["shifted a little", "shifted"])
def test_a_log_file_of_another_store_is_told_from_damage(kind: Kind, begin: int, tmp_path: Path) -> None:
    root, other, copy = tmp_path / "store", tmp_path / "other", tmp_path / "copy"
    kind.made(root, count=240)
    with kind.open(other) as store:
        kind.fill(store, Content(), begin=begin, count=240)
    files = sorted((root / "commitlog").iterdir())
    assert len(files) > 2
    for path in files:
        shutil.copytree(root, copy)
        shutil.copyfile(other / "commitlog" / path.name, copy / "commitlog" / path.name)
        with pytest.raises(CorruptData, match=rf"{path.name}.*of another store") as refused:
            plan_repair(copy)
        assert "Put the right file back" in str(refused.value)
        assert f"exchange them back, or move {kind.tree}/ away" in str(refused.value)
        shutil.rmtree(copy)


def test_after_retention_queues_are_not_to_be_moved_away(tmp_path: Path) -> None:
    """They alone tell where a queue ends whose messages all expired."""
    root, other = tmp_path / "store", tmp_path / "other"
    PLAIN.made(root, count=240)
    with PLAIN.open(other) as store:
        PLAIN.fill(store, Content(), begin=7, count=240)
    first, *_, last = sorted((root / "commitlog").iterdir())
    shutil.copyfile(other / "commitlog" / last.name, last)
    first.unlink()
    with pytest.raises(CorruptData, match="of another store") as refused:
        plan_repair(root)
    assert "exchange them back" in str(refused.value)
    assert "away" not in str(refused.value)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_log_file_of_another_store_with_messages_of_one_size(count: int, tmp_path: Path) -> None:
    roots = tmp_path / "store", tmp_path / "other"
    for number, root in enumerate(roots):
        chance = random.Random(number)
        with stratalog.open(root, **SIZES) as store:
            for _ in range(300):
                store.put("orders", b"%d" % number * 30, queue_id=chance.randrange(count))
    for path in sorted((roots[0] / "commitlog").iterdir()):
        shutil.copytree(roots[0], tmp_path / "copy")
        shutil.copyfile(roots[1] / "commitlog" / path.name, tmp_path / "copy" / "commitlog" / path.name)
        with pytest.raises(CorruptData, match=rf"{path.name}.*of another store"):
            plan_repair(tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.one_in(54)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("sys_flag", [4, 12], ids=["prepared", "rolled back"])
@pytest.mark.parametrize("unit", [0, 1, 2])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED], ids=str)
def test_a_record_that_enters_no_queue_gets_no_place_by_another_queues_unit(
    kind: Kind, unit: int, sys_flag: int, road: str, state: str, tmp_path: Path
) -> None:
    """One unit leads to it."""
    root, key, content = tmp_path / "store", kind.queues[0], Content()
    with kind.open(root) as store:
        kind.fill(store, content, count=2)
        apart = store.queue(*kind.queues[1]).put_record(b"apart", b"", sys_flag=sys_flag)
        kind.fill(store, content, begin=2, count=6)
    path = kind.files(root, key)[0]
    data = bytearray(path.read_bytes())
    data[20 * unit : 20 * unit + 12] = struct.pack(">qi", apart.commit_log_offset, apart.store_size)
    path.write_bytes(data)
    STATES[state](root)
    log = (root / "commitlog" / f"{0:020d}").read_bytes()
    walked(kind, root, road)
    assert (root / "commitlog" / f"{0:020d}").read_bytes() == log
    with kind.open(root, mode="r") as store:
        for queue in kind.queues:
            assert read_on(store.queue(*queue)) == (content.queues[queue], [], set())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_step_for_exchanged_queues_builds_all_of_them_whatever_the_settings(kind: Kind, tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    content = kind.made(root, count=240)
    with kind.open(other) as store:
        kind.fill(store, Content(), begin=7, count=240)
    path, *_ = sorted((root / "commitlog").iterdir())
    whole = path.read_bytes()
    shutil.copyfile(other / "commitlog" / path.name, path)
    with pytest.raises(
        CorruptData, match=f"move {kind.tree}/ away: `stratalog rebuild {root}` builds the queues again"
    ):
        plan_repair(root)
    path.write_bytes(whole)
    (root / kind.tree).rename(tmp_path / "away")
    rebuild(root)
    with stratalog.open(root, mode="r") as store:
        assert {key: read_on(store.queue(*key))[0] for key in kind.queues} == content.queues
