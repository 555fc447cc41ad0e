"""The golden cases themselves: nothing was changed or lost on the way here."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from golden.cases import GOLDEN, golden_case, golden_names


def digests(files: Iterable[tuple[str, bytes]]) -> dict[str, tuple[int, str]]:
    return {path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in files}


@pytest.mark.parametrize("name", golden_names("local"))
def test_a_store_holds_the_files_that_its_description_lists(name: str) -> None:
    case = golden_case(name)
    found = digests(case.store_files())
    listed = {path: (file["size"], file["sha256"]) for path, file in case.about["files"].items()}
    assert found == listed
    assert case.release in ("5.5.0", "5.3.3")


@pytest.mark.parametrize("name", golden_names("tiered"))
def test_a_tier_holds_the_files_that_its_description_lists(name: str) -> None:
    case = golden_case(name)
    listed = {file["path"]: (file["length"], file["sha256"]) for file in case.about["files"]}
    tiered = {path.removeprefix("tier/"): file for path, file in listed.items() if path.startswith("tier/")}
    assert digests(case.tier_files()) == tiered
    if case.has_store:
        local = {path.removeprefix("store/"): file for path, file in listed.items() if path.startswith("store/")}
        found = digests(case.store_files())  # that of index-5.3.3 holds the open index files only
        common = local.keys() & found.keys()
        assert len(common) >= 4
        assert {path: found[path] for path in common} == {path: local[path] for path in common}


@pytest.mark.parametrize("name", golden_names("local"))
def test_every_operation_of_a_plan_has_its_answer(name: str) -> None:
    case = golden_case(name)
    plan, puts = case.plan(), case.puts()
    assert len(plan) >= 5
    assert {put["op"] for put in puts} <= set(range(len(plan)))
    assert sum(put.get("messages", 0) for put in puts if put.get("status") == "PUT_OK") >= case.about["put_records"]


def test_there_are_as_many_cases_as_the_readme_says() -> None:
    assert (len(golden_names("local")), len(golden_names("tiered")), golden_names("broker")) == (57, 24, ["broker"])
    assert sum(file.stat().st_size for file in GOLDEN.rglob("*") if file.is_file()) < 12_000_000


@pytest.mark.parametrize(
    ("name", "unpack", "wanted"),
    [
        ("local/plain-5.5.0", "unpack_store", "commitlog/00000000000000000000"),
        ("tiered/plain-5.5.0", "unpack_store", "consumequeue/topic-00/0/00000000000000000000"),
        ("tiered/plain-5.5.0", "unpack_tier", "212d6b50_DefaultCluster/broker-a/rmq_sys_INDEX/0/INDEX"),
        ("broker", "unpack_store", "config/topics.json"),
    ],
)
def test_a_case_unpacks_into_a_private_directory(name: str, unpack: str, wanted: str, tmp_path: Path) -> None:
    unpacking: Callable[[Path], Path] = getattr(golden_case(name), unpack)
    assert (unpacking(tmp_path) / wanted).exists()


def test_an_unknown_case_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(LookupError, match=r"local/plain-5\.5\.0"):
        golden_case("local/plain-1.0.0")
