"""A queue file is an older copy, of a topic that was deleted and created again since: opening notes it after a clean
stop, `verify` reports it, and the tools serve the live messages, or name the file."""

import shutil
import time
from pathlib import Path

import pytest

from store.kinds import KINDS, QUEUE_FILE_UNITS, Content, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, delete, fill, settings_of
from stratalog.errors import CorruptData
from stratalog.layout.names import COMMIT_LOG
from stratalog.store.snapshot import TICK_NS
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

CASES = [(old, count) for old in (8, 9, 16, 30) for count in (10, 20, 46)]


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    assert isinstance(request.param, Kind)
    return request.param


@pytest.mark.one_in(20)
@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize(("old", "count"), CASES)
def test_an_older_file_of_a_deleted_topic(
    kind: Kind, old: int, count: int, state: str, number: int, tmp_path: Path
) -> None:
    root, older, content, key = *_made(kind, old, count, tmp_path), kind.queues[0]
    STATES[state](root)
    copies = kind.files(older, key)
    if (
        len(kind.files(root, key)) < 2
        or len(copies) <= number
        or not (root / copies[number].relative_to(older)).exists()
    ):
        pytest.skip("no such file, or the only one")
    file = root / copies[number].relative_to(older)
    file.write_bytes(copies[number].read_bytes())
    _check(kind, root, file, content, state, tmp_path / "copy")


@pytest.mark.one_in(12)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("old", [70, 100, 130])
def test_an_older_file_that_leads_to_expired_messages(
    kind: Kind, old: int, gone: int, state: str, tmp_path: Path
) -> None:
    """Its units lead to deleted messages that expired; later deleted ones are in the log."""
    root, older, content, key = *_made(kind, old, 70, tmp_path), kind.queues[0]
    log = sorted((root / COMMIT_LOG).iterdir())
    if len(log) <= gone:
        pytest.skip("no such file")
    for path in log[:gone]:
        path.unlink()
    begin = int(log[gone].name)
    kind.open(root).close()
    STATES[state](root)
    for numbers in content.queues.values():
        for number in [number for number, known in numbers.items() if known.commit_log_offset < begin]:
            del numbers[number]
    copy = kind.files(older, key)[0]
    file = root / copy.relative_to(older)
    if not file.exists() or min(content.queues[key]) >= QUEUE_FILE_UNITS:
        pytest.skip("the messages of the file expired, too")
    file.write_bytes(copy.read_bytes())
    _check(kind, root, file, content, state, tmp_path / "copy")


@pytest.mark.one_in(24)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("which", ["all", "first", "last"])
@pytest.mark.parametrize("old", [20, 40, 90])
@pytest.mark.parametrize("count", [70, 130])
def test_verify_misses_what_an_older_copy_lacks(
    kind: Kind, old: int, count: int, which: str, state: str, tmp_path: Path
) -> None:
    """All units of the copy lead to expired messages: in a killed store, too, later ones are missing, not behind."""
    root, older, content, key = *_made(kind, old, count, tmp_path), kind.queues[0]
    known = sorted(one.commit_log_offset for one in content.queues[key].values())
    for path in sorted((root / COMMIT_LOG).iterdir()):
        if int(path.name) + path.stat().st_size <= known[-3]:
            path.unlink()
    begin = int(min((root / COMMIT_LOG).iterdir()).name)
    if begin <= known[0]:
        pytest.skip("deleted messages may be in the log")
    kind.open(root).close()
    STATES[state](root)
    copies = kind.files(older, key)
    for copy in {"all": copies, "first": copies[:1], "last": copies[-1:]}[which]:
        file = root / copy.relative_to(older)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(copy.read_bytes())
    if which == "all":
        for path in set(kind.files(root, key)) - {root / copy.relative_to(older) for copy in copies}:
            path.unlink()
    expected = {number: one for number, one in content.queues[key].items() if one.commit_log_offset >= begin}
    with kind.open(root, mode="r") as store:
        found = read_on(store.queue(*key))[0]
    assert not found.items() - expected.items()
    assert found == expected or not verify(root, settings=settings_of(kind)).ok


def _made(kind: Kind, old: int, count: int, folder: Path) -> tuple[Path, Path, Content]:
    """A store whose topic was deleted and created again, an older copy of it, and what it holds."""
    root, older, content = folder / "store", folder / "older", Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, Content(), 0, old)
    shutil.copytree(root, older)
    with kind.open(root, clock_ns=Clock()) as store:
        delete(store, kind)
        fill(kind, store, content, old, old + count)
        if old % 2:
            store.dispatch()
            time.sleep(2 * TICK_NS / 1e9)  # the snapshot trusts what is older than a tick
    return root, older, content


def _check(kind: Kind, root: Path, file: Path, content: Content, state: str, copy: Path) -> None:
    settings, key = settings_of(kind), kind.queues[0]
    expected = content.queues[key]
    assert not verify(root, settings=settings).ok
    shutil.copytree(root, copy)
    try:
        rebuild(copy, settings=settings)
    except CorruptData:
        pass
    else:
        with kind.open(copy, mode="r") as store:
            assert read_on(store.queue(*key))[0] == expected
    shutil.rmtree(copy)
    shutil.copytree(root, copy)
    refusal = ""
    try:
        repair(plan_repair(copy, settings=settings))
    except CorruptData as error:
        refusal = str(error)
    if refusal:
        assert str(file.relative_to(root)) in refusal
        (copy / file.relative_to(root)).unlink()
        repair(plan_repair(copy, settings=settings))
    assert verify(copy, settings=settings).ok
    with kind.open(copy, mode="r") as store:
        assert read_on(store.queue(*key))[0] == expected
    with kind.open(root) as store:
        found, notes = read_on(store.queue(*key))[0], store.recovery.notes
    if state == "closed":
        assert found == expected or any(str(file) in note for note in notes)
