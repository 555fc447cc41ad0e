"""A light queue whose messages came in both ways, as RocketMQ allows: sent to it, and with its name in
INNER_MULTI_DISPATCH. RocketMQ counts both from 0; stratalog refuses the first."""

import contextlib
import shutil
from functools import partial
from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, SIZES
from store.test_recreated_topics import killed, settings_of, unseal, walked
from stratalog.errors import CorruptData
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import decode_record
from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, INDEX
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import UNIT
from stratalog.store.disk import Disk
from stratalog.store.dispatch import LeftOut
from stratalog.tools.rebuild import _begun_anew, rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

QUEUE = "%LMQ%a"


def _put(root: Path, *generations: str) -> dict[int, int]:
    """Put "s" for sent, "n" for named; the topic is deleted between the generations. Returns the log offsets of the
    messages that the queue leads to, by queue offset. Names are changed in the files: stratalog sends nothing to a
    light queue, and counts the generations on."""
    placed = list[tuple[int, int]]()
    with LIGHT_KIND.open(root) as store:
        for number, ways in enumerate(generations):
            placed.clear()
            for way in ways:
                if way == "s":
                    receipt = store.queue(f"{number}LMQaa").put_raw(b"sent")
                    placed.append((receipt.commit_log_offset, receipt.queue_offset))
                else:
                    text = encode_properties({MULTI_DISPATCH: f"%LMQ%{number}"})
                    receipt = store.queue("parent").put_raw(b"named", text)
                    placed.append((receipt.commit_log_offset, ways[: len(placed)].count("n")))
    unseal(root)
    (log,) = (root / COMMIT_LOG).glob(f"{0:020d}")
    data = log.read_bytes()
    for number in range(len(generations)):
        data = data.replace(b"%dLMQaa" % number, QUEUE.encode()).replace(b"%%LMQ%%%d" % number, QUEUE.encode())
    log.write_bytes(data)
    queues = root / CONSUME_QUEUE
    for number in range(len(generations)):
        for name in (f"{number}LMQaa", f"%LMQ%{number}"):
            shutil.rmtree(queues / name, ignore_errors=True)
    shutil.rmtree(root / INDEX)
    units, expected = bytearray(SIZES["mapped_file_size_consume_queue"]), dict[int, int]()
    for offset, number in placed:
        if number not in expected:
            unit = UNIT.pack(offset, decode_record(data, offset).total_size, 0)
            units[number * UNIT.size : (number + 1) * UNIT.size] = unit
            expected[number] = offset
    (queues / QUEUE / "0").mkdir(parents=True)
    (queues / QUEUE / "0" / f"{0:020d}").write_bytes(units)
    return expected


def _served(root: Path) -> dict[int, int]:
    with LIGHT_KIND.open(root, mode="r") as store:
        return {one.queue_offset: one.commit_log_offset for one in store.queue(QUEUE).read()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("ways", ["snnn", "nsss", "ssnnn", "nnnss", "nsnns", "sn", "ns"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_it_is_no_topic_that_was_created_again(ways: str, is_killed: bool, tmp_path: Path) -> None:
    _put(tmp_path, ways)
    if is_killed:
        killed(tmp_path)
    settings = settings_of(LIGHT_KIND)
    assert verify(tmp_path, settings=settings).ok
    with contextlib.suppress(CorruptData):
        rebuild(tmp_path, settings=settings)
    for _ in range(2):
        report = verify(tmp_path, settings=settings)
        assert report.ok, report.problems[:3]
        assert repair(plan_repair(tmp_path, settings=settings)).ok
        LIGHT_KIND.open(tmp_path).close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("generations", [("sn", "n"), ("sn", "nnn"), ("sssn", "nnnn"), ("snn", "nn"), ("nns", "sn")])
@pytest.mark.parametrize("road", ["read", "opened", "rebuilt", "repaired"])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_deleted_messages_of_both_ways_are_left_out(
    generations: tuple[str, str], road: str, is_killed: bool, is_lost: bool, tmp_path: Path
) -> None:
    """Also where the files of another queue are lost, so that all queues are built again."""
    expected = _put(tmp_path, *generations)
    if is_killed:
        killed(tmp_path)
    if is_lost:
        shutil.rmtree(tmp_path / CONSUME_QUEUE / "parent")
    walked(LIGHT_KIND, tmp_path, road) if road != "read" else None
    assert _served(tmp_path) == expected


@pytest.mark.parametrize("generations", [("nnn", "nns"), ("snn", "snn"), ("nns", "nn")])
@pytest.mark.parametrize("is_killed", [False, True])
def test_without_its_files_such_a_queue_is_refused(
    generations: tuple[str, str], is_killed: bool, tmp_path: Path
) -> None:
    _put(tmp_path, *generations)
    if is_killed:
        killed(tmp_path)
    shutil.rmtree(tmp_path / CONSUME_QUEUE / QUEUE / "0")
    (tmp_path / CONSUME_QUEUE / QUEUE / "0").mkdir()
    settings = settings_of(LIGHT_KIND)
    for call in (partial(rebuild, tmp_path, settings=settings), partial(plan_repair, tmp_path, settings=settings)):
        with pytest.raises(CorruptData, match=r"begin again at queue offset 0|would be missing"):
            call()


def test_a_light_queue_without_a_unit_of_a_message_begins_but_once(tmp_path: Path) -> None:
    expected = _put(tmp_path, "nn", "nn")
    left_out = [LeftOut(offset, QUEUE, 0, 0) for offset in expected.values()]
    staging = tmp_path / "no queues"
    assert _begun_anew(tmp_path, staging, left_out[:1], Disk()) is None
    assert _begun_anew(tmp_path, staging, left_out, Disk()) == left_out[1]


PLACES = {"size": 0, "magic": 4, "body CRC": 8, "queue id": 12, "queue offset": 20, "log offset": 28, "flags": 36}
"""Bytes of a record's head."""


@pytest.mark.one_in(90)
@pytest.mark.parametrize("ways", ["snnn", "nsss", "ssnnn", "nnnss", "nsnns", "snnnnn"])
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("place", [*PLACES, *range(1, 80, 3)])
@pytest.mark.parametrize("bit", [0, 4])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_damaged_record_changes_no_other_or_repair_refuses(
    ways: str, number: int, place: str | int, bit: int, is_killed: bool, tmp_path: Path
) -> None:
    """A bit of one record, in its head or so far in front of its end."""
    expected = _put(tmp_path, ways)
    if is_killed:
        killed(tmp_path)
    path = tmp_path / COMMIT_LOG / f"{0:020d}"
    data, records = bytearray(path.read_bytes()), list[tuple[int, int]]()
    while len(records) < len(ways):
        begin = records[-1][1] if records else 0
        records.append((begin, begin + decode_record(data, begin).total_size))
    begin, end = records[number % len(ways)]
    data[begin + PLACES[place] if isinstance(place, str) else max(end - place, begin)] ^= 1 << bit
    path.write_bytes(data)
    is_only = ways.count(ways[number % len(ways)]) == 1  # nothing else says that there are two ways
    try:
        plan = plan_repair(tmp_path, settings=settings_of(LIGHT_KIND))
    except CorruptData:
        return
    if plan.actions:
        repair(plan)
    after, served = path.read_bytes(), _served(tmp_path)
    assert (after[:begin], after[end:]) == (data[:begin], data[end:])
    assert is_only or served == expected or plan.lost or plan.missing or plan.unplaced, served


@pytest.mark.parametrize("ways", ["snnn", "nsss", "nsnns"])
@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize("position", [2, 5, 9, 15])
def test_a_damaged_unit_is_built_again(ways: str, unit: int, position: int, tmp_path: Path) -> None:
    expected = _put(tmp_path, ways)
    path = tmp_path / CONSUME_QUEUE / QUEUE / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[unit * UNIT.size + position] ^= 1 << 2
    path.write_bytes(data)
    repair(plan_repair(tmp_path, settings=settings_of(LIGHT_KIND)))
    assert _served(tmp_path) == expected
