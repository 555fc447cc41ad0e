"""`offload`, `sql` and `demo` through the command line, on the run's Spark session."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import stratalog
from stratalog import tiered
from stratalog.cli.demo import lookups, write
from stratalog.cli.demo.flights import QUEUES
from stratalog.cli.main import app

SETTINGS: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}
TITLES = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
COUNT = 600
SLICE = 100

pytestmark = pytest.mark.usefixtures("spark")


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Path, Path]:
    """A store of 300 messages, and the tier that the command copied it to."""
    folder = tmp_path_factory.mktemp("offload")
    with stratalog.open(folder / "store", **SETTINGS) as store:
        for number in range(300):
            store.put(
                "orders", b"body \x1b[31m %d" % number, queue_id=number % 3, tags="ab"[number % 2], keys=f"k{number}"
            )
    shown = json.loads(call("offload", folder / "store", folder / "tier", "--json").stdout)
    assert (shown["record_count"], shown["lost_count"], shown["broker"]) == (300, 0, "store")
    return folder / "store", folder / "tier"


def test_what_was_offloaded_is_read_from_the_tier(places: tuple[Path, Path]) -> None:
    store, tier = places
    lines = [json.loads(line) for line in call("get", tier, "orders", "-q", 2, "-n", 500, "--json").stdout.splitlines()]
    local = [
        json.loads(line) for line in call("get", store, "orders", "-q", 2, "-n", 500, "--json").stdout.splitlines()
    ]
    assert len(lines) == 100
    assert [line["body"] for line in lines] == [line["body"] for line in local]
    (found,) = call("query", tier, "orders", "k77", "--json").stdout.splitlines()
    assert json.loads(found)["queueOffset"] == 25


def test_a_second_offload_finds_nothing_to_do(places: tuple[Path, Path]) -> None:
    store, tier = places
    result = call("offload", store, tier)
    assert (result.exit_code, result.stdout) == (0, "the tier holds everything already\n")
    assert json.loads(call("inspect", store, "--lag", tier, "--json").stdout)["lag"] == 0


@pytest.mark.parametrize("option", ["--store", "--tier"])
def test_sql_answers_as_a_table_and_as_json(option: str, places: tuple[Path, Path]) -> None:
    place = places[option == "--tier"]
    statement = "SELECT tags, count(*) AS n, max(body) AS b FROM messages GROUP BY tags ORDER BY tags"
    result = call("sql", statement, option, place)
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        ["a", "150", "body", "98"],
        ["b", "150", "body", "99"],
    ]
    assert "2 rows in " in result.stderr
    rows = [json.loads(line) for line in call("sql", statement, option, place, "--json").stdout.splitlines()]
    assert [(row["tags"], row["n"], row["b"]) for row in rows] == [
        ("a", 150, "body \x1b[31m 98"),
        ("b", 150, "body \x1b[31m 99"),
    ]
    assert "there are more" in call("sql", "SELECT queueOffset FROM messages", option, place, "--limit", 2).stderr


def test_a_statement_that_is_none_is_told_in_one_sentence(places: tuple[Path, Path]) -> None:
    for statement in ("SELEC 1", "SELECT nothing FROM messages"):
        result = call("sql", statement, "--tier", places[1])
        assert result.exit_code == 2
        told = result.stderr.splitlines()[-1]
        assert told.startswith("stratalog: Spark does not understand the statement")
        assert "Traceback" not in result.stderr


def test_damage_in_the_tier_is_told_in_one_sentence(places: tuple[Path, Path], tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "store", **SETTINGS) as store:
        store.put("orders", b"body")
    assert call("offload", tmp_path / "store", tmp_path / "tier").exit_code == 0
    (segment,) = (path for path in (tmp_path / "tier").rglob("COMMIT_LOG/*") if path.is_file())
    segment.write_bytes(bytes(segment.stat().st_size))
    result = call("sql", "SELECT body FROM messages", "--tier", tmp_path / "tier")
    assert result.exit_code == 1
    assert "stratalog: " in result.stderr.splitlines()[-1]
    assert segment.name in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


# -- the demo ------------------------------------------------------------------------------------------------------


def rows() -> list[str]:
    """Flights of three carriers in twelve months; some never departed, some have no aircraft."""
    made = []
    for number in range(COUNT):
        delay = "NA" if number % 50 == 0 else number % 40 - 5
        aircraft = "NA" if number % 60 == 5 else f"N{number % 20}XX"
        month, carrier = number % 12 + 1, ("UA", "DL", "OO")[number % 3]
        made.append(
            f"2013,{month},1,517,515,{delay},830,819,11,{carrier},{number % 90},{aircraft},{QUEUES[number % 3]},IAH,"
            f"227,1400,5,15,2013-{month:02d}-01T10:00:00Z"
        )
    return made


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(write, "SLICE", SLICE)
    monkeypatch.setattr(lookups, "OFFSET", 50)
    for name, value in SETTINGS.items():
        monkeypatch.setitem(write.SETTINGS, name, value)
    path = tmp_path / "flights.csv"
    path.write_text("\n".join((TITLES, *rows())) + "\n")
    return path


def tier_counts(folder: Path) -> list[int]:
    with tiered.open(folder / "tier") as tier:
        return [len(list(tier.queue(*name).read())) for name in tier.queues()]


def test_the_demo_walks_the_whole_road_and_a_second_run_goes_on(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    first = call("demo", "--dir", folder, "--flights", table)
    assert first.exit_code == 0, first.output
    assert [line[:5] for line in first.stdout.splitlines() if line.startswith("[")] == [f"[{n}/6]" for n in range(1, 7)]
    assert f"{COUNT:,} records, {COUNT:,} units in 3 queues" in first.stdout
    assert list((folder / "store" / "commitlog").iterdir()) == []
    assert tier_counts(folder) == [COUNT // 3] * 3
    with tiered.open(folder / "tier") as tier:
        bodies = [json.loads(message.body)["flight"] for message in tier.queue("flights", 0).read()]
    assert bodies == [number % 90 for number in range(0, COUNT, 3)]

    second = call("demo", "--dir", folder)
    assert second.exit_code == 0, second.output
    assert f"The data is there: {COUNT:,} flights are in the tier" in second.stdout
    assert "[1/6]" not in second.stdout
    assert tier_counts(folder) == [COUNT // 3] * 3
    for name in ("put one by one", "append by Arrow", "verify", "offload"):
        lines = [[line for line in run.stdout.splitlines() if line.startswith(name)] for run in (first, second)]
        assert lines[0] == lines[1] != []


def test_the_report_has_the_figures_of_the_terminal_and_asks_nothing_of_the_network(
    table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shown = call("demo", "--dir", folder, "--flights", table).stdout
    page = (folder / "report.html").read_text()
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    assert "prefers-color-scheme: dark" in page
    for line in shown.partition("\nstep ")[2].partition("\n\n")[0].splitlines()[2:]:
        for cell in re.split(r"\s{2,}", line.strip()):
            assert f">{cell}<" in page, cell
    by_carrier = shown.partition("by carrier and month")[2].partition("mean departure delay")[0]
    for line in by_carrier.splitlines()[4:-1]:
        for figure in line.split()[2:]:
            assert f">{figure}<" in page, figure
    mean = sum(number % 40 - 5 for number in range(COUNT) if number % 50) / sum(
        bool(number % 50) for number in range(COUNT)
    )
    assert f"<b>{mean:.1f} min</b>" in page


def test_a_demo_that_was_stopped_goes_on_without_a_message_twice(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    append = write._append

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "_append", stop)
    assert call("demo", "--dir", folder, "--flights", table).exit_code == 130
    monkeypatch.setattr(write, "_append", append)
    monkeypatch.setattr(write, "drop", stop)
    assert call("demo", "--dir", folder, "--flights", table).exit_code == 130
    monkeypatch.undo()
    result = call("demo", "--dir", folder)
    assert result.exit_code == 0, result.output
    assert tier_counts(folder) == [COUNT // 3] * 3
    assert "was checked already" in result.stdout
    assert "was offloaded already" in result.stdout


def test_a_demo_does_not_go_on_with_a_damaged_store(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    check = write.check

    def damaged(path: Path) -> Any:
        log = next((path / "commitlog").iterdir())
        data = bytearray(log.read_bytes())
        data[200] ^= 1
        log.write_bytes(data)
        return check(path)

    monkeypatch.setattr(write, "check", damaged)
    result = call("demo", "--dir", folder, "--flights", table)
    assert result.exit_code == 1
    assert "1 problems, the first: " in result.stderr
    assert not (folder / "tier").exists()
