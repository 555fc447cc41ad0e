"""Queue directories that lie in the tree of another type: no message is lost, and no offset is given again."""

from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, read_on
from store.test_recreated_topics import STATES
from store.test_stray_queues import LIGHT, OWN, SETTINGS, checked, put, refused
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONFIG, CONSUME_QUEUE
from stratalog.store.config_files import TOPICS
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

MOVES = ["the topic", "the queue", "the light queue", "all", "exchanged"]


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


@pytest.mark.one_in(10)
@pytest.mark.parametrize("road", ["open", "repair", "rebuild"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("count", [1, 2, 6, 20])
@pytest.mark.parametrize("moved", MOVES)
@pytest.mark.parametrize("kind", ["plain", "light"])
def test_queues_that_were_moved_to_the_batch_tree_keep_messages_and_ends(
    kind: str, moved: str, count: int, state: str, road: str, tmp_path: Path
) -> None:  # fmt: skip
    if kind == "plain" and "light" in moved:
        pytest.skip("no light queue")
    places = put(tmp_path, kind, count)
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
