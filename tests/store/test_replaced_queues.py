"""The directory of a queue is replaced by another queue's that has few messages, or by another store's: the messages of
the queue reach its end at the clean stop, and do not pass for those of a deleted topic."""

import shutil
from pathlib import Path

import pytest

import stratalog
from store.kinds import SIZES
from store.model import QUIET
from stratalog.config.settings import StoreSettings
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.properties import encode_properties
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

GIVEN = {**SIZES, "enable_lmq": True, "enable_multi_dispatch": True}
SETTINGS = StoreSettings.make(GIVEN)
OWN = ("topic", 0)
OTHERS = {
    "topic of one letter more": ("topicx", 0),
    "one bit off": ("topib", 0),
    "id": ("topic", 1),
    "light": ("%LMQ%a", 0),
}


def put(root: Path, own: int, other: tuple[str, int], count: int) -> None:
    with stratalog.open(root, **GIVEN, **QUIET) as store:
        for number in range(own):
            store.queue(*OWN).put(b"%d" % number)
        for number in range(count):
            if other[0].startswith("%"):
                properties = encode_properties({MULTI_DISPATCH: other[0]})
                store.queue("topic", 1).put_raw(b"other %d" % number, properties)
            else:
                store.queue(*other).put(b"other %d" % number)


def check(root: Path, own: int, count: int) -> None:
    with stratalog.open(root, mode="r", **GIVEN, **QUIET) as store:
        bodies = [message.body for message in store.queue(*OWN).read()]
        assert bodies == [b"%d" % number for number in range(own)]
        found = [m.body for key in store.queues() if key != OWN for m in store.queue(*key).read()]
        assert {b"other %d" % number for number in range(count)} == {*found}


def refused(root: Path, road: str) -> bool:
    """Whether a step is refused, with the next one named; else all of them end well."""
    try:
        _go(root, road)
    except stratalog.StratalogError as error:
        return any(word in str(error) for word in ("stratalog repair", "back", "move", "another store"))
    return False


def _go(root: Path, road: str) -> None:
    for step in road.split(", "):
        if step == "open":
            stratalog.open(root, **GIVEN, **QUIET).close()
        elif step == "rebuild":
            rebuild(root, settings=SETTINGS)
        else:
            assert repair(plan_repair(root, settings=SETTINGS)).ok
            assert verify(root, settings=SETTINGS).ok


@pytest.mark.one_in(54)
@pytest.mark.parametrize("road", ["open", "repair", "rebuild", "open, repair", "open, rebuild"])
@pytest.mark.parametrize("how", ["moved", "exchanged", "copied"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("own", [1, 2, 5])
@pytest.mark.parametrize("other", OTHERS)
def test_the_messages_of_a_queue_stay_live_in_its_place(
    other: str, own: int, count: int, how: str, road: str, tmp_path: Path
) -> None:
    root, key = tmp_path / "store", OTHERS[other]
    put(root, own, key, count)
    mine, theirs = (root / "consumequeue" / topic / str(queue_id) for topic, queue_id in (OWN, key))
    aside = tmp_path / "aside"
    mine.rename(aside)
    if how == "copied":
        shutil.copytree(theirs, mine)
    else:
        theirs.rename(mine)
    if how == "exchanged":
        aside.rename(theirs)
    if refused(root, road):
        return
    check(root, own, count)


@pytest.mark.one_in(54)
@pytest.mark.parametrize("road", ["open", "repair", "rebuild", "open, repair"])
@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("before", range(8))
@pytest.mark.parametrize("own", [1, 5])
def test_the_files_of_another_store_do_not_hide_them(
    own: int, before: int, count: int, road: str, tmp_path: Path
) -> None:  # fmt: skip
    root, foreign = tmp_path / "store", tmp_path / "foreign"
    put(root, own, OWN, 0)
    with stratalog.open(foreign, **GIVEN, **QUIET) as store:
        for number in range(before):  # records of the same size: the units begin at the log's end, or elsewhere
            store.put("topib", b"%d" % number)
        for number in range(count):
            store.put("topic", b"%d" % number)
    shutil.rmtree(root / "consumequeue" / "topic" / "0")
    shutil.copytree(foreign / "consumequeue" / "topic" / "0", root / "consumequeue" / "topic" / "0")
    if refused(root, road):
        return
    check(root, own, 0)
