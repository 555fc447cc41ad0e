"""Compile before the tests: hypothesis has a deadline, and no example shall have a compiler in it."""

import pyarrow as pa
import pytest

from stratalog.kernels.warm import compile_all


@pytest.fixture(scope="package", autouse=True)
def _compiled() -> None:
    compile_all()
    pa.array(["pyarrow imports pandas at its first list"])
