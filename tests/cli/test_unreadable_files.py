"""Exit codes of `stratalog verify` where the system does not let files be read."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import stratalog
from cli.calls import SETTINGS, Call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two files of the log."""
    with stratalog.open(tmp_path / "store", **SETTINGS) as opened:
        for number in range(60):
            opened.put("orders", b"x" * 1500, keys=[f"k{number}"])
    return tmp_path / "store"


@pytest.mark.parametrize("flag", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    ("unreadable", "exit_code"),
    [(("",), 2), (("commitlog",), 2), (("commitlog/00000000000000000000",), 1), (("consumequeue",), 1),
     (("index",), 1), (("consumequeue", "index"), 1)],
    ids=["every file", "log", "first log file", "queues", "index", "queues and index"],
)  # fmt: skip
def test_verify_tells_a_store_that_cannot_be_read_from_a_damaged_one(
    unreadable: tuple[str, ...], exit_code: int, flag: tuple[str, ...], store: Path, call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert call("verify", store, *flag).exit_code == 0
    real = os.open

    def fails(what: Any, *given: Any, **named: Any) -> int:
        path = Path(os.fsdecode(what))
        if path.is_file() and any(path.is_relative_to(store / name) for name in unreadable):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(what, *given, **named)

    monkeypatch.setattr(os, "open", fails)
    result = call("verify", store, *flag)
    assert result.exit_code == exit_code, result.output
    assert "Permission denied" in result.output
