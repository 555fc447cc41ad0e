"""The reading commands on a tier that RocketMQ wrote."""

import json
from pathlib import Path

import pytest

from cli.calls import Call
from golden.cases import GoldenCase, golden_case


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
