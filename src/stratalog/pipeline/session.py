"""One Spark session, with the settings that were measured to matter.

`spark_session()` is for people who have no session; every job also takes a session of the caller's own, and none ever
stops one. Most options of Spark make no difference here. Those that do are in `session_settings`, each with its reason.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.errors import ConfigurationError, NotInstalled
from stratalog.pipeline.java import Java, cache_directory, cached_file, find_java, launcher_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 3
"""`local[N]` alone gives a task one attempt; with three, a task that fails once is retried as on a cluster."""

_LOG_CONFIGURATION = """\
# Errors only, and those on stderr: stdout belongs to the command's own output.
status = fatal
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark %p %c{1}: %m%n%ex
# Named, or Spark announces on stderr that it sets this one's level.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

_WORKER_LAUNCHER = """\
#!/bin/sh
# Starts a Spark worker's Python without pyspark.zip on its path. The zip holds sources only, so that every new worker
# would compile pyspark again (0.65 s instead of 0.2 s); the installed package beside it is the same code, compiled.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept="${{kept:+$kept:}}$entry" ;;
  esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def spark_session(
    *,
    cores: int | None = None,
    memory: str = "2g",
    app_name: str = "stratalog",
    streaming: bool = False,
    extra: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The active Spark session, unchanged; or a new local one.

    `cores` is the number of tasks at a time (all that this process may use), `memory` the JVM's heap. `streaming` adds
    what a Structured Streaming query wants. `extra` are Spark settings that win over ours; with `spark.master` among
    them, the settings that only hold on one machine are left out. JVM options in it replace ours.

    While the JVM starts, `JAVA_HOME` and `PYSPARK_PYTHON` are set in this process's environment; they are put back
    afterwards. Nobody else may start a session at that moment.

    Raises `ConfigurationError` if pyspark or a Java is missing, or if Spark does not start.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotInstalled("this needs pyspark: pip install 'stratalog[spark]'") from error

    if SparkSession.getActiveSession() is not None or _session_of_another_thread():
        # A builder without options hands out the session that is there and sets nothing on it.
        return SparkSession.Builder().getOrCreate()

    cache = cache_directory()
    java = find_java()
    settings = session_settings(cores=cores, memory=memory, streaming=streaming, cache=cache)
    if extra and "spark.master" in extra:
        settings = {key: value for key, value in settings.items() if key not in _ONE_MACHINE_ONLY}
    settings |= extra or {}

    builder = SparkSession.Builder().appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _environment(_start_environment(java, cache=cache, master=settings["spark.master"])):
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise ConfigurationError(
                f"Spark did not start with Java {java.version} in {java.home} ({java.origin}); what it said is above. "
                f"If memory is short, ask for less than {memory}."
            ) from error
    return session


_ONE_MACHINE_ONLY = frozenset({"spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module"})


def session_settings(*, cores: int | None, memory: str, streaming: bool, cache: Path) -> dict[str, str]:
    """Spark's settings for work on one machine. `cache` receives the logging configuration."""
    tasks = cores if cores is not None else len(os.sched_getaffinity(0))
    if tasks < 1:
        raise ConfigurationError(f"a Spark session needs at least one core, not {tasks}")
    logging = cached_file("log4j2.properties", _LOG_CONFIGURATION, cache=cache)
    settings = {
        "spark.master": f"local[{tasks},{TASK_ATTEMPTS}]",
        "spark.driver.memory": memory,
        # One machine: nothing listens outside, and an odd host name does not matter.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # No web interface: half a second of the start, and an open port.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        # Python workers over a Unix socket: no TCP port, 50 ms less a query.
        "spark.python.unix.domain.socket.enabled": "true",
        # Workers that outlive the JVM end without a traceback on the terminal.
        "spark.python.daemon.module": "stratalog.pipeline.worker_daemon",
        # A crash in native code names its place.
        "spark.python.worker.faulthandler.enabled": "true",
        # Off by default, and our source refuses to plan without it.
        "spark.sql.python.filterPushdown.enabled": "true",
        # 4096 rows of 1 KB are the 4 MB where Arrow transport is fastest.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Two waves of tasks: a Python task costs 20 ms, so the default of 200 would cost seconds.
        "spark.sql.shuffle.partitions": str(2 * tasks),
        # Stores keep milliseconds since the epoch; results must not depend on where they are looked at.
        "spark.sql.session.timeZone": "UTC",
        # One thread per worker: Spark's tasks are the parallelism already.
        "spark.executorEnv.OMP_NUM_THREADS": "1",
        "spark.executorEnv.ARROW_IO_THREADS": "1",
        "spark.executorEnv.NUMBA_NUM_THREADS": "1",
    }
    if streaming:
        settings |= {
            "spark.sql.adaptive.enabled": "false",
            # Without Hadoop's checksum files and forked chmods: 100 instead of 147 ms a batch. Right for one writer per
            # checkpoint, as ours has.
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
            ),
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        }
    return settings


def _start_environment(java: Java, *, cache: Path, master: str) -> dict[str, str]:
    environment = {"JAVA_HOME": str(launcher_home(java, cache=cache))}
    if "PYSPARK_PYTHON" not in os.environ:
        # Left alone, Spark takes any python3 on the PATH. The launcher is a file of this machine.
        environment["PYSPARK_PYTHON"] = str(_worker_python(cache)) if master.startswith("local[") else sys.executable
    return environment


def _worker_python(cache: Path) -> Path:
    """The Python that Spark's workers run: ours, through the launcher where pyspark is an installed package."""
    import pyspark

    if ".zip" in pyspark.__file__:
        return Path(sys.executable)
    return cached_file(
        "python", _WORKER_LAUNCHER.format(python=shlex.quote(sys.executable)), cache=cache, executable=True
    )


def _session_of_another_thread() -> bool:
    """Is there a Spark context already, though no session is active in this thread?"""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
