"""Queue directories that lie in the tree of another type: no message is lost, and no offset is given again."""

import os
import shutil
from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, SIZES, read_on
from store.test_recreated_topics import STATES
from store.test_stray_queues import LIGHT, OWN, SETTINGS, checked, put, refused
from stratalog.layout.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONFIG, CONSUME_QUEUE
from stratalog.layout.queue import BATCH_UNIT
from stratalog.store.config_files import TOPICS
from stratalog.store.disk import Disk
from stratalog.store.topics import Topics
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

MOVES = ["the topic", "the queue", "the light queue", "all", "exchanged"]


def expire(root: Path) -> None:
    with LIGHT_KIND.open(root) as store:
        while len(list((root / COMMIT_LOG).iterdir())) < 2:
            store.queue("other").put_raw(bytes(500), b"")
    (root / COMMIT_LOG / f"{0:020d}").unlink()


def move(root: Path, moved: str) -> None:
    plain, batch = root / CONSUME_QUEUE, root / BATCH_CONSUME_QUEUE
    if moved == "exchanged":
        batch.mkdir(exist_ok=True)
        plain.rename(root / "aside")
        batch.rename(plain)
        (root / "aside").rename(batch)
        return
    topics = [LIGHT[0]] if "light" in moved else [OWN[0], LIGHT[0]] if moved == "all" else [OWN[0]]
    for topic in topics:
        if (plain / topic).exists():
            (batch / topic).parent.mkdir(exist_ok=True)
            if moved == "the queue":
                (batch / topic).mkdir()
                (plain / topic / "0").rename(batch / topic / "0")
            else:
                (plain / topic).rename(batch / topic)


@pytest.mark.one_in(144)
@pytest.mark.parametrize("road", ["open", "repair", "rebuild"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("is_expired", [False, True])
@pytest.mark.parametrize("count", [1, 2, 6, 20])
@pytest.mark.parametrize("moved", MOVES)
@pytest.mark.parametrize("kind", ["plain", "light"])
def test_queues_that_were_moved_to_the_batch_tree_keep_messages_and_ends(
    kind: str, moved: str, count: int, is_expired: bool, state: str, road: str, tmp_path: Path
) -> None:  # fmt: skip
    if kind == "plain" and "light" in moved:
        pytest.skip("no light queue")
    places = put(tmp_path, kind, count)
    if is_expired:
        expire(tmp_path)
        places = {key: {} for key in places}
    for path in (tmp_path / CONFIG).glob(f"{TOPICS}*"):
        path.unlink()
    STATES[state](tmp_path)
    move(tmp_path, moved)
    if road == "rebuild":
        assert not rebuild(tmp_path, settings=SETTINGS).unqueued
    if road == "repair" or refused(tmp_path):
        plan = plan_repair(tmp_path, settings=SETTINGS)
        assert not [*plan.lost, *plan.missing, *plan.lost_ranges]
        assert {action.kind for action in plan.actions} == {"rebuild"}
        assert repair(plan).ok
        assert not plan_repair(tmp_path, settings=SETTINGS).actions
    with LIGHT_KIND.open(tmp_path) as store:
        for key, there in places.items():
            assert read_on(store.queue(*key))[:2] == (there, []), key
            assert store.queue(*key).max_offset == count
    if road != "open":
        assert checked(tmp_path).ok


@pytest.mark.one_in(3)
@pytest.mark.parametrize("road", ["open", "repair", "rebuild"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("count", [2, 6, 20])
def test_plain_units_give_a_batch_topics_queue_no_end(count: int, state: str, road: str, tmp_path: Path) -> None:
    """No store can have written what 20-byte units say when they are read as 46-byte ones."""
    put(tmp_path, "plain", count)
    expire(tmp_path)
    with LIGHT_KIND.open(tmp_path) as store:
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
        store.queue("batches").put_batch([b"one", b"two"], unique_key="u")
    STATES[state](tmp_path)
    queue = tmp_path / BATCH_CONSUME_QUEUE / "batches" / "1"
    shutil.copytree(tmp_path / CONSUME_QUEUE / OWN[0] / "0", queue)
    for path in queue.iterdir():
        os.truncate(path, SIZES["mapper_file_size_batch_consume_queue"])
    for path in sorted(queue.iterdir())[1:]:
        path.unlink()
    if road == "rebuild":
        rebuild(tmp_path, settings=SETTINGS)
    elif road == "repair":
        assert repair(plan_repair(tmp_path, settings=SETTINGS)).ok
        assert not plan_repair(tmp_path, settings=SETTINGS).actions
    with LIGHT_KIND.open(tmp_path) as store:
        end = store.queue("batches", 1).max_offset
        assert end <= (road == "open")  # zeros after the last unit, in part
        assert store.queue("batches").max_offset == 2
        assert store.queue(*OWN).max_offset == count
        assert store.queue("batches", 1).put_batch([b"one"], unique_key="v").queue_offset == end


@pytest.mark.parametrize("count", [1, 2])
def test_a_damaged_unit_makes_a_batch_topic_no_plain_one(count: int, tmp_path: Path) -> None:
    put(tmp_path, "batch", count)
    for path in (tmp_path / CONFIG).glob(f"{TOPICS}*"):
        path.unlink()
    file = next((tmp_path / BATCH_CONSUME_QUEUE / OWN[0] / "0").iterdir())
    stored = file.read_bytes()
    for bit in range(8 * BATCH_UNIT.size):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        fields = BATCH_UNIT.unpack(bytes(damaged))
        assert Topics(tmp_path, Disk()).is_batch(OWN[0]), fields
