"""Compiled kernels that cannot be read or written at their first use, after the store was opened: each call is refused,
nothing is written, the store goes on as soon as they can be read."""

import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.kernels import jit

pytestmark = pytest.mark.skipif(not jit.CACHE_DIRECTORY, reason="no kernels are kept here")
PROGRAM = """
import errno, os, sys
import pyarrow as pa
from numba.core import caching
import stratalog
from stratalog.errors import StoreUnavailable
from stratalog.layout.properties import encode_properties

root = sys.argv[1]
settings = dict(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=100, max_index_num=400,
                flush_interval_commit_log=10 ** 7, flush_interval_consume_queue=10 ** 7)
store = stratalog.open(root, flush="sync", **settings)
store.create_topic("batches", queue_type="BatchCQ")
count = {"t": 0, "batches": 0}
text = encode_properties({"KEYS": "k"})


def put(topic, number, call):
    call()
    count[topic] += number


calls = {
    "put": lambda: put("t", 1, lambda: store.put("t", b"x", keys="k")),
    "put_raw": lambda: put("t", 1, lambda: store.queue("t").put_raw(b"x", text)),
    "put_many": lambda: put("t", 40, lambda: store.put_many("t", [b"y"] * 40, text)),
    "append": lambda: put("t", 50, lambda: store.append(pa.record_batch({"body": [b"z"] * 50, "keys": ["k"] * 50}),
                                                         topic="t", queue_id=0)),
    "put_batch": lambda: put("batches", 2, lambda: store.queue("batches").put_batch([b"a", b"b"], unique_key="k")),
    "dispatch": store.dispatch,
    "flush": store.flush,
    "keep": store._flush_all,
    "max_offset": lambda: store.queue("t").max_offset,
    "read": lambda: list(store.queue("t").read()),
    "read_arrow": lambda: store.queue("t").read_arrow(),
    "query": lambda: store.query("t", key="k"),
}
load = caching.IndexDataCacheFile.load
for number in (errno.EACCES, errno.ENOSPC, errno.EMFILE):
    def refuse(self, key):
        raise OSError(number, os.strerror(number), self._index_path)
    caching.IndexDataCacheFile.load = refuse
    for name, call in calls.items():
        end, counted = store.log.end_offset, dict(count)
        try:
            call()
        except StoreUnavailable as error:
            assert "kernels" in str(error) or number == errno.EMFILE, (name, number, error)
            assert store.log.end_offset == end and count == counted, (name, number)
            print(errno.errorcode[number], name)
        assert not store.log.failure and not store.derived_failure, (name, number)
caching.IndexDataCacheFile.load = load
for call in calls.values():
    call()
assert len(list(store.queue("t").read())) == store.queue("t").max_offset == count["t"], count
assert len(store.query("t", key="k", limit=None)) == count["t"]
store.close()
with stratalog.open(root, **settings) as store:
    assert store.recovery.clean
    assert len(list(store.queue("t").read())) == count["t"]
    assert len(list(store.queue("batches").read())) == count["batches"]
"""


def test_kernels_that_cannot_be_read_at_their_first_use_refuse_the_call_and_fail_no_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    refused = done.stdout.split("\n")
    assert "EACCES dispatch" in refused, refused
    assert "ENOSPC dispatch" in refused, refused
