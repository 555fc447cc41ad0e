"""What every test folder shares: a marker by folder, and one Spark session for the whole run."""

import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

hypothesis.settings.register_profile("stratalog", deadline=None)  # a kernel may be compiled within an example
hypothesis.settings.load_profile("stratalog")

TESTS = Path(__file__).parent
MARKER_FOLDERS = frozenset({"unit", "property", "architecture", "golden", "interop", "crash", "spark"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole-matrix", action="store_true", help="every case of the tests marked one_in(n)")
    parser.addoption("--sample", default="", help="a seed: other cases of the tests marked one_in(n)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test's kind is the folder it lies in: `tests/golden/...` is `-m golden`; any other folder holds unit tests."""
    for item in items:
        if TESTS not in item.path.parents:
            continue
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(folder if folder in MARKER_FOLDERS else "unit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadScopeScheduling":
    """Of several processes one runs all tests of a file, and all that share a session of Spark or RocketMQ."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            folder = file.split("/")[1]
            return folder if folder in ("spark", "interop") else file

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Of a large matrix one case in n runs (one at least), always the same ones for a seed; without that `make test`
    would take days. The others are dropped before pytest makes a test of each: it has no public hook for that."""
    yield
    mark = metafunc.definition.get_closest_marker("one_in")
    if mark is None or metafunc.config.getoption("--whole-matrix"):
        return
    seed = metafunc.config.getoption("--sample") + metafunc.definition.name
    calls = metafunc._calls
    sample = [call for call in calls if zlib.crc32(f"{seed}[{call.id}]".encode()) % mark.args[0] == 0]
    calls[:] = sample or calls[:1]


def pytest_sessionstart() -> None:
    """A machine without compiled kernels compiles them now: no test has a compiler in it or beside it."""
    from stratalog.kernels import aside, warm

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it runs in the background
    if not aside.is_complete():
        warm.compile_all()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The run's one Spark session. C1 only: the JVM starts in half the time and nobody waits for fast code."""
    from stratalog.pipeline.session import session_settings, spark_session

    folder = tmp_path_factory.mktemp("spark")
    options = session_settings(cores=2, memory="1g", streaming=True, cache=folder)["spark.driver.extraJavaOptions"]
    session = spark_session(
        cores=2,
        memory="1g",
        app_name="stratalog-tests",
        streaming=True,
        extra={
            "spark.driver.extraJavaOptions": f"{options} -XX:TieredStopAtLevel=1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        },
    )
    yield session
    session.stop()
