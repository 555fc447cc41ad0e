"""The reading commands on a tier that RocketMQ wrote."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

import stratalog
from cli.calls import Call
from golden.cases import GoldenCase, golden_case
from stratalog.pipeline.offload import OffloadReport


@pytest.fixture
def case() -> GoldenCase:
    return golden_case("tiered/plain-5.5.0")


@pytest.fixture
def tier(case: GoldenCase, tmp_path: Path) -> Path:
    return case.unpack_tier(tmp_path)


def test_a_tier_is_known_by_its_directories(tier: Path, case: GoldenCase, call: Call) -> None:
    shown = json.loads(call("inspect", tier, "--json").stdout)
    assert shown["kind"] == "tier"
    expected = {(line["topic"], line["queueId"]) for line in case.expected("message")}
    assert {(queue["topic"], queue["queueId"]) for queue in shown["queues"] if queue["messages"]} == expected
    assert "on disk" in call("inspect", tier).stdout


def test_messages_and_their_reads_are_shown(tier: Path, case: GoldenCase, call: Call) -> None:
    line = case.expected("message")[0]
    result = call("get", tier, line["topic"], "-q", line["queueId"], "-o", line["queueOffset"], "-n", 1, "--json")
    (message,) = [json.loads(text) for text in result.stdout.splitlines()]
    assert message["queueOffset"] == line["queueOffset"]
    assert message["storeTimestamp"] == line["storeTimestamp"]
    told = call("get", tier, line["topic"], "-q", line["queueId"], "--tier").stderr
    assert " with " in told
    assert " read" in told


def test_keys_are_looked_up_with_counted_reads(tier: Path, case: GoldenCase, call: Call) -> None:
    line = next(line for line in case.expected("query") if line["messages"])
    found = call("query", tier, line["topic"], line["key"], "--json")
    assert found.exit_code == 0, found.output
    assert found.stdout
    assert all(json.loads(text)["topic"] == line["topic"] for text in found.stdout.splitlines())
    assert " read" in call("query", tier, line["topic"], line["key"]).stderr


def test_lag_is_for_local_stores(tier: Path, call: Call) -> None:
    assert call("inspect", tier, "--lag", tier).exit_code == 2


def test_lag_counts_what_the_tier_lacks(tier: Path, case: GoldenCase, tmp_path: Path, call: Call) -> None:
    store = case.unpack_store(tmp_path / "local")
    shown = json.loads(call("inspect", store, "--lag", tier, "--json").stdout)
    for queue in shown["queues"]:
        assert queue["lag"] == max(0, queue["maxOffset"] - max(queue["tierEnd"], queue["minOffset"]))
    assert shown["lag"] == sum(queue["lag"] for queue in shown["queues"])


@pytest.mark.parametrize("record_count", [0, 2])
def test_an_offload_names_and_counts_what_a_tier_cannot_have(
    record_count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call
) -> None:
    known = {field.name: 0 for field in fields(OffloadReport)} | {"record_count": record_count, "tier_size": 600}
    report = OffloadReport(**known | {"passed_over": {"or\\xffers/0": 3, "or ers/1": 4}})  # type: ignore[arg-type]
    monkeypatch.setattr("stratalog.pipeline.offload.offload", lambda *given, **named: report)
    with stratalog.open(tmp_path / "store", small=True) as store:
        store.put("t", b"one")
    shown = call("offload", tmp_path / "store", tmp_path / "tier")
    assert shown.exit_code == 0, shown.output
    assert "7 messages of queues that a tier cannot have: or ers/1 (4), or\\xffers/0 (3)" in " ".join(
        shown.stdout.split()
    )
