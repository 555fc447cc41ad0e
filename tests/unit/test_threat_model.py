"""The threat model names tests that exist."""

import re
from pathlib import Path

from torture.rows import ROWS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()


def test_each_guarantee_names_a_test_that_is_there() -> None:
    rows = [line for line in PAGE.partition("## What is guaranteed")[2].splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        paths = re.findall(r"`(tests/[a-z_/.]+)`", row)
        assert paths, row
        assert all((ROOT / path).exists() for path in paths), row


def test_rows_and_functions_are_there() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert all(f"def {name}(" in tests for name in re.findall(r"`(test_[a-z_]+)`", PAGE))
    named = "".join(re.findall(r"rows? ((?:`[a-z-]+`(?:, | and )?)+)", PAGE))
    assert set(re.findall(r"`(.*?)`", named)) == {"extremes", "fuzz", "fuzz-stores"} <= ROWS.keys()
