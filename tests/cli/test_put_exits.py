"""However `put` ends, it says what is stored: an error of any call of the system, at any moment."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from typer.testing import Result

import stratalog
from cli.calls import SETTINGS, Call, sentence
from crash.faults import install
from store.model import scratch_folder

STATES = ("new", "closed", "not closed", "full file")
FORMS = {"one": ["a body"], "lines": []}
LINES = b"first line\nsecond line\n"
BODIES = {"one": [b"a body"], "lines": LINES.splitlines()}
ERRORS = (errno.EIO, errno.EACCES, errno.EISDIR)
TOPIC = "told"


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield path


def made(root: Path, state: str) -> Path:
    """A store as a put may find it."""
    if state == "new":
        return root
    with stratalog.open(root, **SETTINGS) as store:
        store.put("orders", b"before", keys="k")
        if state == "full file":  # the first line goes into a new one
            store.put("orders", bytes(SETTINGS["mapped_file_size_commit_log"] - 400))
    if state == "not closed":
        (root / "abort").touch()
    return root


def put(call: Call, root: Path, form: str) -> Result:
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    return call("put", root, TOPIC, *FORMS[form], *settings, stdin=LINES)


def stored(root: Path) -> list[bytes]:
    """What a reader finds afterwards."""
    try:
        with stratalog.open(root, mode="r", **SETTINGS) as store:
            return [message.body for message in store.queue(TOPIC).read(0)]
    except stratalog.errors.NotAStore:
        return []


def check(result: Result, found: list[bytes], form: str) -> None:
    """The output names as many messages as are there."""
    told = " ".join(result.stderr.lower().split())
    assert result.exit_code in (0, 1, 2), told
    assert "traceback" not in told
    if result.exit_code == 0:
        assert found == BODIES[form]
        return
    assert told
    assert not result.stdout
    assert found == BODIES[form][: len(found)]
    if not found:
        assert "stored" not in told
        assert "in the log" not in told
    else:
        what = "the message is" if len(found) == 1 else f"the {len(found)} messages are"
        assert f"{what} stored" in told or f"{what} in the log" in told, told


@pytest.mark.one_in(36)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state", STATES)
def test_whatever_the_system_refuses_put_says_what_is_stored(
    state: str, form: str, folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made(folder / "source", state)
    number, is_over, seen = 0, False, 0
    while not is_over:
        is_over = True
        for error in (errno.ENOSPC, ERRORS[number % len(ERRORS)]):
            root = folder / f"{number}.{error}"
            if source.exists():
                copytree(source, root)
            calls = install(monkeypatch, root)
            calls.error = error
            calls.fail_at = lambda at, name, path, number=number: at == number  # type: ignore[misc]
            result = put(call, root, form)
            is_over &= not calls.failures
            monkeypatch.undo()
            found = stored(root)
            check(result, found, form)
            if result.exit_code and not calls.calls[number][1].endswith("lock"):
                assert str(root) in result.stderr
                assert os.strerror(error) in result.stderr or "no room" in result.stderr
            rmtree(root, ignore_errors=True)
            seen += result.exit_code != 0 and bool(found)
        number += 1
    assert number > 10
    assert seen


def test_sizes_that_cannot_be_noted_keep_no_message_from_being_stored(folder: Path, call: Call) -> None:
    root = made(folder / "store", "closed")
    (root / "file-sizes.json").unlink()
    (root / "file-sizes.json").mkdir()
    told = sentence(put(call, root, "one"))
    for part in (
        f"{root} cannot be marked as closed: Is a directory: {root}/file-sizes.json", "move it out of the store",
        f"The message is stored, in {TOPIC}/0 from offset 0 on: do not put again",
    ):  # fmt: skip
        assert part in told
    assert "take no more messages" not in told
    (root / "file-sizes.json").rmdir()
    assert put(call, root, "one").exit_code == 0
    assert stored(root) == BODIES["one"] * 2
