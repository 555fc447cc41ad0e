"""The short form of every row of `make torture`, with a fixed seed."""

from pathlib import Path

import pytest

from store.model import scratch_folder
from torture.__main__ import DEFAULT_SEED
from torture.report import Row, Torture, run_row
from torture.rows import ROWS


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_torture_holds_in_its_short_form(name: str, tmp_path: Path) -> None:
    what, function = ROWS[name]
    with scratch_folder() as folder:
        row = run_row(name, what, function, Torture(DEFAULT_SEED, full=False, folder=folder, disk_folder=tmp_path))
    if not row.cases and not row.failed:
        pytest.skip("; ".join(row.notes))
    assert not row.violations, f"repeat with: {row.repeat}"
    assert not row.failed


def test_what_a_case_raises_is_counted_and_repeated_by_one_command(tmp_path: Path) -> None:
    def fails(torture: Torture, row: Row) -> None:
        for number in range(2):
            with row.case(number):
                raise AssertionError(f"case {number}")

    row = run_row("name", "what", fails, Torture(7, full=False, folder=tmp_path, disk_folder=tmp_path))
    assert (row.cases, row.failed) == (2, 2)
    assert row.repeat == "make torture SEED=7 FORM=short ROWS=name"
    assert "case 1: AssertionError: case 1 (test_torture.py" in row.violations[1]


def test_a_row_without_a_case_is_a_violation(tmp_path: Path) -> None:
    row = run_row("name", "what", lambda *given: None, Torture(7, full=False, folder=tmp_path, disk_folder=tmp_path))
    assert row.failed
