"""Directories of light queues that were exchanged or renamed: no record is changed, and nothing is named as lost."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store import test_light_places_of_lost_records
from store.kinds import LIGHT_KIND, SIZES, Key, Known, read_on
from store.test_light_places_of_lost_records import Places, Told
from store.test_recreated_topics import STATES, _exchange, delete, settings_of
from stratalog.errors import CorruptData
from stratalog.layout.light import MULTI_DISPATCH, is_light
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore

NAMES = [
    ("%LMQ%a", "%LMQ%b", "%LMQ%c"),
    ("%LMQ%client-1", "%LMQ%client-2", "%LMQ%client-3"),
    ("%LMQ%x", "%LMQ%yy", "%LMQ%z"),
]
STORES = [
    "1:cb 0:a",
    "0:a 0:b",
    "0:ab 0:a 0:a",
    "0:ab 0:ab 0:ab 0:a 0:a 0:a",
    "0:ab 0:a 0:b 1:c",
    "0: 0:ab 1:a 0:ab 1:b 0:a",
    "1:a 0:b 0:b 1:c 1:ca",
    "0:a 1:b 0:c 1:",
    "0:a 0:ab 1:a",
    "0:a 1:b 0:ab 1:a 0:b 1:ab",
]
"""The messages of a store: the id of the queue of each in its topic, and its light queues."""
QUEUES = [("parent", 0), ("parent", 1), ("a", 0), ("b", 0), ("c", 0)]
PAIRS = [pair for pair in itertools.permutations(QUEUES, 2) if pair[0][0] != pair[1][0]]


def put(store: MessageStore, queue_id: int, names: list[str], places: Places) -> None:
    properties = encode_properties({MULTI_DISPATCH: ",".join(names)} if names else {})
    put = store.queue("parent", queue_id).put_raw(b"%d" % sum(map(len, places.values())), properties)
    known = Known.of(next(iter(store.queue("parent", queue_id).read(put.queue_offset))))
    for key in [("parent", queue_id), *((name, 0) for name in names)]:
        queue = places.setdefault(key, {})
        queue[len(queue)] = known


def made(root: Path, messages: str, names: tuple[str, ...], generations: int) -> Places:
    with LIGHT_KIND.open(root) as store:
        for generation in range(generations):
            places = Places()
            for message in messages.split(" "):
                queue_id, letters = message.split(":")
                put(store, int(queue_id), [names["abc".index(letter)] for letter in letters], places)
            if generation + 1 < generations:
                delete(store, replace(LIGHT_KIND, queues=tuple(places)))
    return places


@pytest.mark.one_in(2700)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["repair", "open, repair", "rebuild, repair", "put", "put, repair"])
@pytest.mark.parametrize(("how", "generations"), [("exchanged", 1), ("renamed", 1), ("exchanged", 2)])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("messages", STORES)
@pytest.mark.parametrize("names", NAMES, ids=str)
def test_no_intact_record_is_changed_or_lost(
    names: tuple[str, ...], messages: str, pair: tuple[Key, Key], how: str, generations: int, road: str, state: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    root = tmp_path / "store"
    places = made(root, messages, names, generations)
    one, other = ((names["abc".index(topic)] if topic in "abc" else topic, queue_id) for topic, queue_id in pair)
    if not places.keys() >= {one, other} or (how == "exchanged" and one > other):
        pytest.skip("no such pair")
    moved, others = (places[one].items() - places[other].items(), places[other].items() - places[one].items())
    if len(moved) + (len(others) if how == "exchanged" else 0) < 2:
        pytest.skip("one record alone: it may have been changed")
    if how == "renamed" and not is_light(other[0]):
        pytest.skip("the units of that queue are lost: a repair may not be ok")
    log = root / "commitlog" / f"{0:020d}"
    before = log.read_bytes().rstrip(b"\0")
    STATES[state](root)
    directories = [root / "consumequeue" / topic / str(queue_id) for topic, queue_id in (one, other)]
    if how == "exchanged":
        _exchange(*directories, root / "aside")
    else:
        shutil.rmtree(directories[1])
        directories[0].rename(directories[1])
    told, refused = Told(root, places), ""
    for step in road.split(", "):
        try:
            if step == "put":
                told.open()
                with LIGHT_KIND.open(root) as store:
                    put(store, 2, [], places)
            else:
                getattr(told, step)()
        except CorruptData as error:
            told.texts.append(str(error))
            if step != "rebuild" or "them back" in str(error):  # else it asks for a repair
                refused = str(error)
                break
    is_first = road == "repair"
    after = log.read_bytes().rstrip(b"\0")
    assert after[: len(before)] == before, "changed"
    assert (refused and not is_first) or "put" in road or after == before, "appended"
    assert not {(key, number) for key, number in told.stated if is_first or number in places.get(key, {})}, told.stated
    if refused:
        assert "them back" in refused
        if how == "renamed":
            return
        _exchange(*directories, root / "aside")
    with LIGHT_KIND.open(root, mode="r") as store:
        for key, live in places.items():
            found, errors, _ = read_on(store.queue(*key))
            is_told = (errors or any(told.texts)) and (generations == 2 or road == "put")
            assert found == live or (is_told and not refused), f"{key} {sorted(found)} of {sorted(live)}"


@pytest.mark.one_in(720)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["open", "repair", "open, repair", "rebuild, repair"])
@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("letter", "abc")
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("messages", STORES)
def test_a_light_queue_has_no_other_queue_id_than_0(
    messages: str, times: int, letter: str, generations: int, road: str, state: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A directory of another one is no queue of its own, and the messages are where they were. Some logs are several
    files long, and opening does not read all."""
    root, topic = tmp_path / "store", f"%LMQ%{letter}"
    if times > 1:
        monkeypatch.setitem(SIZES, "mapped_file_size_commit_log", 2048)
        monkeypatch.setattr(test_light_places_of_lost_records, "SETTINGS", settings_of(LIGHT_KIND))
    places = made(root, " ".join([messages] * times), NAMES[0], generations)
    if len(places.get((topic, 0), {})) < 2:
        pytest.skip("no such queue, or one unit alone")
    STATES[state](root)
    directory = root / "consumequeue" / topic / "0"
    directory.rename(directory.with_name("7"))
    told, is_refused = Told(root, places), False
    for step in road.split(", "):
        try:
            getattr(told, step)()
        except CorruptData as error:
            is_refused = "rename them back" in str(error)
            assert is_refused or step == "rebuild"  # else it asks for a repair
            told.texts.append(str(error))
    if is_refused:
        assert generations == 2, told.texts[-1]
        directory.with_name("7").rename(directory)
    with LIGHT_KIND.open(root, mode="r") as store:
        for key, live in places.items():
            assert read_on(store.queue(*key))[:2] == (live, []), f"{key}, told {told.texts}"
