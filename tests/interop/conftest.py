"""Apache RocketMQ for these tests: one JVM per release for the whole run. They skip without JDK, Maven or network."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from interop.rocketmq import NoRocketMQ, RocketMQ, jars, tool
from interop.shared import Share, Shared, Writers
from interop.views import random_sizes

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


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RocketMQ]]:
    """Every release, each a process that is asked over JSON lines and started when it first is."""
    peers = {release: RocketMQ(release, tmp_path_factory.mktemp(f"rocketmq-{release}")) for release in RELEASES}
    yield peers
    for peer in peers.values():
        peer.close()


@pytest.fixture(scope="session")
def writers() -> Iterator[Writers]:
    """Processes of ours to be killed."""
    spare = Writers()
    yield spare
    spare.close()


@pytest.fixture
def share(writers: Writers, tmp_path: Path) -> Share:
    """Begin a store that several sides open in turn; the seed decides the sizes of its files."""
    return lambda seed: Shared(tmp_path, random_sizes(seed), writers)


@pytest.fixture(params=RELEASES)
def rocketmq(request: pytest.FixtureRequest, releases: dict[str, RocketMQ]) -> RocketMQ:
    """One release after the other."""
    return releases[request.param]
