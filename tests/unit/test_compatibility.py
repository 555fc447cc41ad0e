"""The compatibility table tells the truth at least in this: every test that it names is there."""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "compatibility.md"
STATES = ("full", "partial", "absent")
TEST = re.compile(r"`([a-z_/0-9]+\.py)::(test_\w+)`")


class Row(NamedTuple):
    section: str
    feature: str
    reads: str
    writes: str
    state: str
    tests: list[tuple[str, str]]
    remark: str


def rows(text: str) -> list[Row]:
    """The rows of every table, under the heading that they stand below."""
    found, section = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("| ") else []
        if cells and cells[0] != "feature":
            assert len(cells) == 6, line
            *head, tests, remark = cells
            found.append(Row(section, *head, TEST.findall(tests), remark))
    return found


ROWS = rows(TABLE.read_text())


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.section}: {row.feature}" for row in ROWS])
def test_a_row_names_tests_that_exist(row: Row) -> None:
    assert row.state in STATES
    assert bool(row.tests) == (row.state != "absent"), "what is there is shown by a test, and only that"
    assert row.remark or row.state != "partial", "say what is missing"
    for path, name in row.tests:
        assert (TESTS / path).exists(), f"there is no tests/{path}"
        assert re.search(rf"^(async )?def {name}\(", (TESTS / path).read_text(), re.M), f"{path} has no {name}"


def test_the_table_says_of_every_part_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    totals = Counter(row.state for row in ROWS)
    with capsys.disabled():
        print(f"\ncompatibility: {', '.join(f'{totals[state]} {state}' for state in STATES)}")  # noqa: T201
    assert sum(totals.values()) == len(ROWS) == len({(row.section, row.feature) for row in ROWS}) > 50
    assert len({row.section for row in ROWS}) == 13


def test_a_row_with_a_test_that_does_not_exist_is_noticed() -> None:
    (row,) = rows("## Part\n| thing | yes | no | full | `unit/test_compatibility.py::test_nothing_like_it` | |")
    with pytest.raises(AssertionError, match="has no test_nothing_like_it"):
        test_a_row_names_tests_that_exist(row)
