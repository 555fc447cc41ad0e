"""What a person waits for before anything happens: new processes, timed from outside."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Bench, Case, Line, Sample, Target, seconds

_USE = """
import stratalog, sys
import pyarrow as pa
with stratalog.open(sys.argv[1], max_hash_slot_num=1000, max_index_num=10_000) as store:
    store.append(pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "keys": ["x", "y"]}), topic="first")
    store.queue("first").put_many([b"c"])
    store.queue("first").read_arrow(0)
    assert [message.body for message in store.query("first", key="y")] == [b"b"]
"""
"""First use: a store made, filled in bulk, dispatched, looked up and decoded, which takes all kernels of a store."""


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    command = Path(sys.executable).with_name("stratalog")

    def nothing() -> float:
        return seconds(lambda: _python("pass"))

    def importing() -> list[Sample]:
        return [Sample(seconds(lambda: _python("import stratalog")), nothing())]

    def helping() -> list[Sample]:
        return [Sample(seconds(lambda: _run([str(command), "--help"])), nothing())]

    def first_use(*, compiled: bool) -> list[Sample]:
        with bench.folder("startup") as folder:
            cache = (bench.directory / "kernels") if compiled else folder / "kernels"
            return [Sample(seconds(lambda: _python(_USE, str(folder / "store"), cache=cache)), nothing())]

    limit = "python -c pass"
    yield [
        Case([Line("import stratalog", "s", limit=limit, target=Target(0.15, at_most=True))], importing),
        Case([Line("stratalog --help", "s", limit=limit, target=Target(0.3, at_most=True))], helping),
        Case([Line("first use ever: kernels are compiled", "s", limit=limit, target=Target(5, at_most=True))],
             lambda: first_use(compiled=False), warm_up=False),
        Case([Line("first use in a later process", "s", limit=limit)], lambda: first_use(compiled=True)),
    ]  # fmt: skip


def _python(code: str, *given: str, cache: Path | None = None) -> None:
    _run([sys.executable, "-c", code, *given], cache=cache)


def _run(command: Sequence[str], *, cache: Path | None = None) -> None:
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} ended with {found.returncode}:\n{found.stderr}")
