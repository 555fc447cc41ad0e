"""Compiling every kernel at once, so that a program can say that it does.

What is compiled is cached on disk (`jit.CACHE_DIRECTORY`): on a machine that ran once, this only loads.
"""

import os
import subprocess
import sys
import time

import numpy as np

from stratalog.kernels import aside
from stratalog.kernels.columns import decode_arrow
from stratalog.kernels.crc32 import crc32
from stratalog.kernels.dispatch import build_units, insert_queue, scatter
from stratalog.kernels.encode import encode_batch, holds_separator
from stratalog.kernels.gather import gather
from stratalog.kernels.index import find_items, put_keys, rebuild_slots
from stratalog.kernels.jit import CACHE_DIRECTORY, HOLDS_THE_GIL
from stratalog.kernels.lookup import find_keys
from stratalog.kernels.messages import read_record, read_units
from stratalog.kernels.put import put, put_raw
from stratalog.kernels.put_many import put_many
from stratalog.kernels.queue_table import QUEUE_FIELDS
from stratalog.kernels.recordcrc import seal_records
from stratalog.kernels.scan import VERIFY, find_record, scan
from stratalog.kernels.sort import compact_items
from stratalog.kernels.tierkeys import KEYS_MAX, check_units, put_items, sort_items, store_times
from stratalog.layout import index, tier
from stratalog.layout.message import HOST_V4, Record
from stratalog.layout.queue import UNIT


def compile_all() -> float:
    """Call each kernel once, on one message or none; returns the seconds that took. Any thread may call it.

    On an empty cache a second process compiles half of them: numba compiles on one core.
    """
    started = time.perf_counter()
    is_cold = bool(CACHE_DIRECTORY) and not aside.is_complete()
    second = subprocess.Popen([sys.executable, "-c", _SECOND_HALF.format(path=sys.path)]) if is_cold else None
    _bind_natives()
    if second:
        second.wait()
    _follow_a_message()
    _index_nothing()
    aside.set_complete()
    return time.perf_counter() - started


_SECOND_HALF = (
    "import sys; sys.path[:] = {path!r}; from stratalog.kernels import warm; "
    "warm._follow_a_message(); warm._index_nothing()"
)


def compile_aside() -> None:
    """What the process does that `aside` starts: everything, with what a put misses first; nothing where one does."""
    held = aside.lock()
    if held is None:
        return
    aside.end_with_parent()
    os.nice(_LOWEST_PRIORITY)
    _bind_natives()
    _follow_a_message()
    _index_nothing()
    aside.set_complete()


_LOWEST_PRIORITY = 19


def _follow_a_message() -> None:
    """Log, queue unit, copy for the tier and Arrow batch of one record."""
    record = np.frombuffer(bytearray(Record(topic=b"t", body=b"b").encode()), np.uint8)
    address, size = record.ctypes.data, record.size
    crc32(address, size)
    positions, sizes = np.zeros(1, np.int64), np.zeros(1, np.int32)
    scan(address, 0, size, 0, VERIFY, positions, sizes)
    find_record(address, 0, size, 0)
    seal_records(address, address)
    queues, table, rows = np.zeros((1, QUEUE_FIELDS), np.int64), np.zeros(2, np.int32), np.zeros(1, np.int32)
    units, out = np.zeros(UNIT.size, np.uint8), np.zeros(UNIT.size, np.uint8)
    build_units(address, positions, 0, 1, 0, queues, table, units, rows, np.zeros(1, np.int64))
    insert_queue(table, queues, 0)
    scatter(units, rows, 0, 1, np.zeros(2, np.int64), out)
    host = np.zeros(HOST_V4.size, np.uint8).ctypes.data
    encode_batch(address, 0, 0, 0, 0, 0, np.zeros((0, 4), np.int64), rows, queues, 0, 0, 0, 0, host, host, 0)
    holds_separator(address, 0)
    log = np.array([address], np.int64)
    gather(units.ctypes.data, 0, log, 0, size, address, 0, 0, out.ctypes.data)
    decode_arrow(UNIT.pack(0, size, 0), (log, 0, size), ["body"], topic="t", broker_name="b")


def _index_nothing() -> None:
    """Local and tier index without items."""
    bytes_, numbers, hashes = np.zeros(1024, np.uint8), np.zeros(4096, np.int64), np.zeros(KEYS_MAX + 1, np.int32)
    address = bytes_.ctypes.data
    header = np.zeros(len(index.HEADER.fields), np.int64)
    put_keys(address, numbers, 0, 0, 0, address, address, 1, 1, header, True, 0)
    rebuild_slots(address, 1, 0, 0, address)
    find_items(address, 1, 1, 0, 0, 0, 0, 0, False, numbers)
    assert tier.compacted_index_size(1, 0) <= bytes_.size
    compact_items(address, tier.COMPACTED_ITEM.size, 0, 1, numbers, address)
    check_units(address, 0, address, 0, 0, address, 0, 0, 0, numbers)
    store_times(address, 0, address, 0, numbers)
    put_items(address, 0, 0, address, 0, 0, 0, address, 0, 0, hashes)
    sort_items(address, 0, address, hashes, hashes.copy(), numbers)


def _bind_natives() -> None:
    """What CPython calls like its own builtins."""
    if HOLDS_THE_GIL:
        for native in (put, put_raw, put_many, read_units, read_record, find_keys):
            native.bind(None)
