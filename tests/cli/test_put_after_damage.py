"""Puts after a damaged record are kept, but perhaps not by RocketMQ: opening, the log and the command say so."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from cli.calls import SETTINGS, Call
from cli.test_damaged_queues import flip_body
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair


@pytest.fixture
def damaged_store(small_store: Path) -> Path:
    """As after a crash, with a damaged record in the middle."""
    flip_body(small_store, b"body 0-4")
    (small_store / "checkpoint").unlink()
    (small_store / "abort").touch()
    return small_store


def put_one(root: Path) -> str:
    """Open, put in every way, close; returns the warning."""
    with stratalog.open(root, **SETTINGS) as store:
        store.put("orders", b"after")
        store.flush()
        store.queue("orders").put_many([b"after"] * 3)
        store.flush()
        return store.recovery.warning


def test_opening_and_the_first_put_are_logged_once_each(damaged_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):  # after the clean stop nothing of the log is read, and the damage is known still
        caplog.clear()
        warning = put_one(damaged_store)
        assert "`stratalog repair " in warning
        assert "RocketMQ may end the log" in warning
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert texts == [warning, f"messages were put after damage. {warning}"]


def test_nothing_is_said_where_nothing_is_put(damaged_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stratalog.open(damaged_store, mode="r", **SETTINGS) as store:
        assert store.recovery.quarantined
        assert not store.recovery.warning
    assert not caplog.records
    stratalog.open(damaged_store, **SETTINGS).close()
    assert len(caplog.records) == 1


def test_after_a_repair_nothing_is_said(damaged_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert put_one(damaged_store)
    assert repair(plan_repair(damaged_store)).ok
    caplog.clear()
    for _ in range(2):
        assert not put_one(damaged_store)
    assert not caplog.records


@pytest.mark.parametrize("given", [["a body"], []], ids=["one", "lines"])
def test_the_command_says_it_on_stderr_and_with_its_exit_code(
    given: list[str], damaged_store: Path, call: Call
) -> None:
    result = call("put", damaged_store, "orders", *given, "--json", stdin="one\ntwo\n")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["count"] == (1 if given else 2)
    (line,) = result.stderr.splitlines()
    assert f"`stratalog repair {damaged_store}`" in line


def test_a_shell_sees_the_warning_once(damaged_store: Path) -> None:
    line = [sys.executable, "-m", "stratalog.cli.main", "put", damaged_store, "orders", "a body"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.count("stratalog repair") == 1


def test_the_command_is_silent_without_damage(small_store: Path, call: Call) -> None:
    result = call("put", small_store, "orders", "a body", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
