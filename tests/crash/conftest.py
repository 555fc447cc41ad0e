"""Crash tests that do not need a real disk run in memory where they can."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.model import scratch_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield path
