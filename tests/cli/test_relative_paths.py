"""A store named by a relative path is treated as by an absolute one, and what may not change its log does not."""

import shutil
from pathlib import Path

import pytest

from cli.calls import Call
from cli.test_damaged_queues import flip_body
from stratalog.layout.names import ABORT, COMMIT_LOG

COMMANDS = {
    "inspect": [],
    "dump": [],
    "verify": [],
    "repair": [],
    "repair a copy": ["--to", "COPY", "--yes"],
    "repair in place": ["--in-place", "--yes"],
    "rebuild": [],
    "rebuild all": ["--yes"],
    "rebuild index": ["--index", "--yes"],
    "get": ["orders", "--queue", "1", "-n", "100"],
    "query": ["orders", "all"],
}
CHANGES_LOG = {"repair in place"}
"""Only that may."""


def log_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / COMMIT_LOG).iterdir()}


def damage(root: Path, state: str) -> None:
    path = root / COMMIT_LOG / f"{0:020d}"
    last = path.read_bytes().rindex(b"body 1-9")
    begin = path.read_bytes().rindex(b"\xda\xa3\x20\xa7", 0, last) - 4  # MESSAGE_MAGIC_CODE
    if state == "middle":
        flip_body(root, b"body 0-4")
    elif state == "last":
        flip(path, begin + 4)
    elif state == "all":
        path.write_bytes(path.read_bytes().replace(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xa6"))
    elif state == "torn":
        path.write_bytes(path.read_bytes()[: last + 3].ljust(path.stat().st_size, b"\0"))
    elif state == "overwritten":
        path.write_bytes(path.read_bytes()[:begin] + b"text" * 1000 + bytes(path.stat().st_size - begin - 4000))
    if state in ("killed", "torn"):
        (root / ABORT).touch()


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["closed", "killed", "middle", "last", "all", "torn", "overwritten"])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_log_and_the_exit_code_do_not_depend_on_how_the_store_is_named(
    name: str, state: str, small_store: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(small_store, state)
    before = log_of(small_store)
    results = []
    for number, (directory, text) in enumerate([("", ""), ("", "{}"), ("{}", "."), ("{}", "../{}")]):
        root = shutil.copytree(small_store, tmp_path / f"named{number}")
        monkeypatch.chdir(tmp_path / directory.format(root.name))
        copy = tmp_path / f"copy{number}"
        given = [str(copy) if word == "COPY" else word for word in COMMANDS[name]]
        result = call(name.split()[0], text.format(root.name) or root, *given)
        assert result.exit_code in (0, 1), result.output
        assert log_of(root) == before or name in CHANGES_LOG, text
        results.append((result.exit_code, log_of(copy if copy.exists() else root)))
    assert results == results[:1] * len(results)
