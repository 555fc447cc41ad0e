"""How the tests of the command line call it, and what they expect of an error."""

from collections.abc import Callable
from typing import Any

from typer.testing import Result

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
"""Sizes that keep a store small; the index has RocketMQ's ratio, so that commands find its size by themselves."""

Call = Callable[..., Result]


def sentence(result: Result, *, exit_code: int = 1) -> str:
    """The one line of an error; fails unless it is exactly that, with the exit code and nothing on stdout."""
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("stratalog: ")
    assert "Traceback" not in lines[0]
    return lines[0]
