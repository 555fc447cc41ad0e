"""Apache RocketMQ for these tests: one JVM per release for the whole run. They skip without JDK, Maven or network."""

from collections.abc import Iterator

import pytest

from interop.rocketmq import NoRocketMQ, RocketMQ

RELEASES = ("5.5.0", "5.3.3")


@pytest.fixture(scope="session", params=RELEASES)
def rocketmq(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A release of RocketMQ, as a process that is asked over JSON lines."""
    try:
        peer = RocketMQ(request.param, tmp_path_factory.mktemp(f"rocketmq-{request.param}"))
    except NoRocketMQ as reason:
        pytest.skip(f"Apache RocketMQ cannot judge here: {reason}")
    yield peer
    peer.close()
