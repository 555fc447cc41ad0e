"""The session that `spark_session` builds, seen from a running one."""

import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import ConfigurationError
from stratalog.pipeline import worker_daemon
from stratalog.pipeline.java import cache_directory
from stratalog.pipeline.session import session_settings, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession


def test_a_job_runs_python_code_in_arrow_batches(spark: "SparkSession") -> None:
    def doubled(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], names=["id"])

    rows = spark.range(1000).mapInArrow(doubled, "id long").agg({"id": "sum"}).collect()
    assert rows[0][0] == 999 * 1000


def test_an_active_session_is_returned_unchanged(spark: "SparkSession") -> None:
    before = spark.conf.getAll
    same = spark_session(cores=1, app_name="another", extra={"spark.sql.shuffle.partitions": "77"})
    assert same.sparkContext is spark.sparkContext
    assert same.conf.getAll == before


def test_another_threads_session_is_found_too(spark: "SparkSession") -> None:
    found: list[SparkSession] = []
    thread = threading.Thread(target=lambda: found.append(spark_session(extra={"spark.sql.shuffle.partitions": "77"})))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_workers_run_one_thread_each_and_import_the_installed_pyspark(spark: "SparkSession") -> None:
    def environment(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import os
        import sys

        import pyarrow as pa
        import pyspark

        names = ("OMP_NUM_THREADS", "ARROW_IO_THREADS", "NUMBA_NUM_THREADS")
        for _ in batches:
            answer = [*(os.environ.get(name, "unset") for name in names), sys.prefix, pyspark.__file__]
            yield pa.RecordBatch.from_pydict({"answer": answer})

    import sys

    import pyspark

    rows = spark.range(1, numPartitions=1).mapInArrow(environment, "answer string").collect()
    assert [row.answer for row in rows] == ["1", "1", "1", sys.prefix, pyspark.__file__]


def test_the_callers_environment_is_as_before(spark: "SparkSession") -> None:
    launchers = str(cache_directory())
    assert not os.environ.get("PYSPARK_PYTHON", "").startswith(launchers)
    assert not os.environ.get("JAVA_HOME", "").startswith(launchers)


def test_a_stream_reads_what_was_there_and_stops(spark: "SparkSession", tmp_path: "Path") -> None:
    spark.range(10).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(60)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10
    assert not list((tmp_path / "checkpoint").rglob("*.crc")), "checkpoint files are written without checksum files"


def test_settings_follow_the_cores_that_were_asked_for(tmp_path: "Path") -> None:
    settings = session_settings(cores=3, memory="5g", streaming=False, cache=tmp_path)
    assert settings["spark.master"] == "local[3,3]"
    assert settings["spark.driver.memory"] == "5g"
    assert settings["spark.sql.shuffle.partitions"] == "6"
    assert "spark.sql.adaptive.enabled" not in settings


def test_no_cores_are_refused(tmp_path: "Path") -> None:
    with pytest.raises(ConfigurationError, match="at least one core"):
        session_settings(cores=0, memory="1g", streaming=False, cache=tmp_path)


def test_a_worker_whose_jvm_has_gone_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(sock: object, authenticated: bool) -> int:
        raise BrokenPipeError

    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(worker_daemon, "_pyspark_worker", gone)
        assert worker_daemon.worker(ours, authenticated=True) == 1
        monkeypatch.setattr(worker_daemon, "_pyspark_worker", lambda sock, authenticated: 0)
        assert worker_daemon.worker(ours, authenticated=True) == 0


def test_workers_run_under_our_daemon(spark: "SparkSession") -> None:
    def parent(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import os
        from pathlib import Path

        import pyarrow as pa

        for _ in batches:
            command = Path(f"/proc/{os.getppid()}/cmdline").read_text()
            yield pa.RecordBatch.from_pydict({"command": [command.replace("\0", " ")]})

    rows = spark.range(1, numPartitions=1).mapInArrow(parent, "command string").collect()
    assert "-m stratalog.pipeline.worker_daemon" in rows[0].command
