"""Files that root makes in another user's store are named, with the command that gives them back."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cli.calls import Call
from cli.test_damaged_queues import flip_body

USER = 12345
COMMANDS = {
    "put": ["put", "STORE", "orders", "a body"],
    "rebuild": ["rebuild", "STORE", "--yes"],
    "repair": ["repair", "STORE", "--in-place", "--yes"],
    "copy": ["repair", "STORE", "--to", "COPY", "--yes"],
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_gives_all_files_to_the_stores_user(
    name: str, is_link: bool, small_store: Path, tmp_path: Path, call: Call
) -> None:
    flip_body(small_store, b"body 0-4")
    named = tmp_path / "link" if is_link else small_store
    if is_link:
        named.symlink_to(small_store)
    for path in (small_store, *small_store.rglob("*")):
        os.chown(path, USER, USER)
    copy = tmp_path / "a copy"
    result = call(*({"STORE": str(named), "COPY": str(copy)}.get(word, word) for word in COMMANDS[name]))
    (printed,) = re.findall(r"note: root owns the files that were made.*`(chown .*)`", result.stderr)
    root = copy if copy.exists() else small_store
    assert any(path.stat().st_uid != USER for path in root.rglob("*"))
    subprocess.run(shlex.split(printed), check=True)
    assert all(path.stat().st_uid == USER for path in (root, *root.rglob("*")))


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_said_of_the_users_own_store(name: str, small_store: Path, tmp_path: Path, call: Call) -> None:
    flip_body(small_store, b"body 0-4")
    result = call(
        *({"STORE": str(small_store), "COPY": str(tmp_path / "copy")}.get(word, word) for word in COMMANDS[name])
    )
    assert "chown" not in result.stderr
