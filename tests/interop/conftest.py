"""Apache RocketMQ for these tests: one JVM per release for the whole run. They skip without JDK, Maven or network."""

from collections.abc import Iterator
from functools import cache

import pytest

from interop.rocketmq import NoRocketMQ, RocketMQ, jars, tool

RELEASES = ("5.5.0", "5.3.3")


@cache
def why_not() -> str | None:
    """Why RocketMQ cannot run on this machine, None when it can. Fetches it the first time."""
    try:
        tool("java")
        tool("javac")
        for release in RELEASES:
            jars(release)
    except NoRocketMQ as reason:
        return str(reason)
    return None


def pytest_runtest_setup() -> None:
    """Skip from one place, so that the summary has one line: the reason and how many tests it took."""
    if reason := why_not():
        pytest.skip(f"Apache RocketMQ cannot judge here: {reason}")


@pytest.fixture(scope="session", params=RELEASES)
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A release of RocketMQ, as a process that is asked over JSON lines."""
    peer = RocketMQ(request.param, tmp_path_factory.mktemp(f"rocketmq-{request.param}"))
    yield peer
    peer.close()
