"""What the tests of the command line share: a way to call it, and a small store."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stratalog
from cli.calls import SETTINGS, Call
from stratalog.cli.main import app


@pytest.fixture
def call() -> Call:
    """Call the command line; arguments may be paths and numbers. An exception that gets out fails the test, as does
    advice that is for Python alone."""

    def invoke(*arguments: object, stdin: str | bytes = "") -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "mode=" not in result.stderr, result.stderr
        return result

    return invoke


@pytest.fixture
def small_store(tmp_path: Path) -> Path:
    """Ten messages in each of two queues, closed properly: body `body <queue>-<number>`, key `k<queue>-<number>`."""
    path = tmp_path / "store"
    with stratalog.open(path, **SETTINGS) as store:
        for number in range(10):
            for queue_id in (0, 1):
                store.put(
                    "orders", f"body {queue_id}-{number}".encode(), queue_id=queue_id, tags="ab"[number % 2],
                    keys=[f"k{queue_id}-{number}", "all"], properties={"region": "eu"},
                )  # fmt: skip
    return path
