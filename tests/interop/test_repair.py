"""RocketMQ opens stores that we repaired: every message that could be saved is there, at its old offset."""

import random
import shutil
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest

from interop.drafts import Ledger, drafts
from interop.rocketmq import RocketMQ
from interop.views import (
    java_reading,
    java_settings,
    one_by_one,
    open_ours,
    our_reading,
    put_by_java,
    random_sizes,
)
from stratalog.config.settings import StoreSettings
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import HEAD, LOST_FLAG
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import SysFlag
from stratalog.store.record_put import Receipt
from stratalog.tools.repair import repair
from stratalog.tools.repair_fill import LOST_PROPERTY
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

pytestmark = pytest.mark.one_in(2)

COUNT = 300
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def offsets(reading: dict[tuple[str, int], list[dict[str, object]]]) -> dict[tuple[str, int], list[object]]:
    return {key: [message["queue_offset"] for message in messages] for key, messages in reading.items()}


@pytest.mark.one_in(72)
@pytest.mark.parametrize("road", ["closed", "crashed", "queues lost"])
def test_rocketmq_reads_everything_behind_damage_that_was_repaired(
    rocketmq: RocketMQ, road: str, tmp_path: Path
) -> None:
    chance = random.Random(f"{rocketmq.release} {road}")
    sizes, root = random_sizes(f"repair {road}"), tmp_path / "store"
    rocketmq.ask("open", directory=str(root), settings=java_settings(sizes))
    put_by_java(rocketmq, one_by_one(drafts(3, COUNT)), Ledger())
    before = java_reading(rocketmq)
    rocketmq.ask("close")
    stored = sorted((m["commit_log_offset"], m["store_size"]) for messages in before.values() for m in messages)
    broken = sorted(chance.sample(stored[: COUNT // 2], 3))
    size = sizes["mapped_file_size_commit_log"]
    for offset, _ in broken:
        path = root / "commitlog" / f"{offset // size * size:020d}"
        data = bytearray(path.read_bytes())
        data[offset % size : offset % size + HEAD.size] = bytes(HEAD.size)
        path.write_bytes(data)
    if road == "crashed":
        (root / "abort").touch()
    settings = StoreSettings(compatibility=rocketmq.compatibility, **sizes)
    plan = plan_repair(root, settings=settings)
    assert plan.behind_count > COUNT // 3
    assert repair(plan).ok
    if road == "queues lost":
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    if road == "crashed":
        (root / "abort").touch()
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(sizes))["loaded"]
    after = java_reading(rocketmq)
    rocketmq.ask("close")
    assert offsets(after) == offsets(before)
    lost = {offset for offset, _ in broken}
    for key, messages in before.items():
        for old, new in zip(messages, after[key], strict=True):
            if old["commit_log_offset"] in lost:
                assert new["sys_flag"] & SysFlag.NEED_UNWRAP  # a batch of no messages
                assert new["flag"] == LOST_FLAG
                assert new["properties"].keys() <= {LOST_PROPERTY}
            else:
                assert new == old
    with open_ours(root, sizes, rocketmq, mode="r") as store:
        assert store.recovery.clean


@pytest.mark.one_in(36)
@pytest.mark.parametrize("lost", ["nothing", "the end of each queue", "all queues"])
def test_rocketmq_serves_all_of_a_crashed_store_that_was_repaired(
    rocketmq: RocketMQ, lost: str, tmp_path: Path
) -> None:
    sizes, running, root = random_sizes(f"crashed {lost}"), tmp_path / "running", tmp_path / "store"
    rocketmq.ask("open", directory=str(running), settings=java_settings(sizes))
    put_by_java(rocketmq, one_by_one(drafts(3, COUNT)), Ledger())
    before = java_reading(rocketmq)
    shutil.copytree(running, root)
    rocketmq.ask("close")
    (root / "lock").unlink()
    for directory in (root / "consumequeue").glob("*/*") if lost == "the end of each queue" else ():
        for path in directory.iterdir():
            kept = 5 * UNIT.size if not int(path.name) else 0
            path.write_bytes(path.read_bytes()[:kept].ljust(path.stat().st_size, b"\0"))
    if lost == "all queues":
        shutil.rmtree(root / "consumequeue")
    assert repair(plan_repair(root, settings=StoreSettings(compatibility=rocketmq.compatibility, **sizes))).ok
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(sizes))["loaded"]
    assert java_reading(rocketmq) == before
    rocketmq.ask("close")


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
def test_rocketmq_keeps_what_was_put_after_damage_once_it_is_repaired(
    rocketmq: RocketMQ, tmp_path: Path, *, clean: bool
) -> None:
    """Without the repair it ends the log at the damage, as the warning says; damage since a clean stop is not looked
    for by opening, but by `verify`. The repair restores the record, too: only its magic number was changed."""
    sizes, root = random_sizes("put after damage"), tmp_path / "store"
    with open_ours(root, sizes, rocketmq) as store:
        places = [store.put("topic", b"%d" % number * 9).commit_log_offset for number in range(20)]
    path, position = root / "commitlog" / f"{0:020d}", places[7] + HEAD.position("magic")
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
    if not clean:
        (root / "checkpoint").unlink()
    with open_ours(root, sizes, rocketmq) as store:
        assert ("stratalog repair" in store.recovery.warning) == (not clean)
        for number in range(5):
            store.put("topic", b"after %d" % number)
    repaired = tmp_path / "repaired"
    settings = StoreSettings(compatibility=rocketmq.compatibility, **sizes)
    assert not verify(root, settings=settings).ok
    assert repair(plan_repair(root, settings=settings), to=repaired).ok
    bodies = [b"%d" % number * 9 for number in range(20)]
    after = [b"after %d" % number for number in range(5)]
    for directory, kept in ((root, bodies[:7]), (repaired, bodies + after)):
        if not clean:
            (directory / "abort").touch()
            (directory / "checkpoint").unlink()
        assert rocketmq.ask("open", directory=str(directory), settings=java_settings(sizes))["loaded"]
        found = [b64decode(message["body"]) for messages in java_reading(rocketmq).values() for message in messages]
        rocketmq.ask("close")
        assert {*kept} == {*found} & {*bodies, *after}


def test_rocketmq_builds_a_light_queue_of_a_repaired_log_with_the_same_offsets(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    """It leaves no gap in a queue and takes no unit behind its end: placeholders must stand in the queue's order."""
    sizes, root = random_sizes("light order") | LIGHT, tmp_path / "store"
    with open_ours(root, sizes, rocketmq) as store:
        receipts = [
            store.put(topic, b"%d" % number * 60, properties={MULTI_DISPATCH: "%LMQ%x"})
            for number, topic in enumerate("abbaab")
        ]
    _zero(root, receipts[2:4])
    settings = StoreSettings(compatibility=rocketmq.compatibility, **sizes)
    assert repair(plan_repair(root, settings=settings)).ok
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(sizes))["loaded"]
    queues = {queue["topic"]: queue for queue in rocketmq.ask("read")["queues"]}
    rocketmq.ask("close")
    assert queues["%LMQ%x"]["next_offset"] == 6
    places = [message["commit_log_offset"] for message in queues["%LMQ%x"]["messages"]]
    assert [places[number] for number in (0, 1, 4, 5)] == [
        receipts[number].commit_log_offset for number in (0, 1, 4, 5)
    ]


@pytest.mark.parametrize("body", [b"", b"12", b"x" * 200], ids=["empty", "short", "long"])
def test_rocketmq_that_insists_on_record_crcs_keeps_all_behind_a_repair(
    rocketmq: RocketMQ, body: bytes, tmp_path: Path
) -> None:
    sizes, root = random_sizes("crc") | {"enabled_append_prop_crc": True}, tmp_path / "store"
    with open_ours(root, sizes, rocketmq) as store:
        receipts = [store.put("orders", body if number == 4 else b"%d" % number) for number in range(10)]
    _zero(root, receipts[4:5])
    settings = StoreSettings(compatibility=rocketmq.compatibility, **sizes)
    assert repair(plan_repair(root, settings=settings)).ok
    (root / "abort").touch()
    strict = java_settings(sizes, forceVerifyPropCRC=True)
    opened = rocketmq.ask("open", directory=str(root), settings=strict)
    served = [message["queue_offset"] for messages in java_reading(rocketmq).values() for message in messages]
    rocketmq.ask("close")
    assert opened["end_offset"] >= receipts[-1].end_offset
    assert {*served} >= {*range(10)} - {4}


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
def test_zero_bytes_in_properties_that_rocketmq_wrote_are_no_damage(
    rocketmq: RocketMQ, tmp_path: Path, *, clean: bool
) -> None:
    """Also where a record CRC would stand, of which zeros could be what is left."""
    sizes, running, root = random_sizes("zeros"), tmp_path / "running", tmp_path / "store"
    rocketmq.ask("open", directory=str(running), settings=java_settings(sizes))
    values = ["\0" * count for count in range(1, 41)] + ["\0" * 8 + "x" * 11]
    texts = [replace(draft, extra={"value": value}) for draft, value in zip(drafts(9, 41), values, strict=True)]
    put_by_java(rocketmq, one_by_one(texts), Ledger())
    before = java_reading(rocketmq)
    if clean:
        rocketmq.ask("close")
    shutil.copytree(running, root)
    if not clean:
        rocketmq.ask("close")
        (root / "lock").unlink()
    settings = StoreSettings(compatibility=rocketmq.compatibility, **sizes)
    with open_ours(root, sizes, rocketmq) as store:
        assert our_reading(store) == before
    assert verify(root, settings=settings).ok
    assert not plan_repair(root, settings=settings).actions


def _zero(root: Path, receipts: list[Receipt]) -> None:
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        for receipt in receipts:
            file.seek(receipt.commit_log_offset)
            file.write(bytes(receipt.store_size))
