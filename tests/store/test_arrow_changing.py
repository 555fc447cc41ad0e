"""Arrow data over memory that is changed while it is put: what is stored is whole, whatever it holds."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

import stratalog

ROWS, SIZE = 100, 20_000


def test_every_row_is_whole_though_another_thread_changes_its_bytes(tmp_path: Path) -> None:
    data = np.zeros(ROWS * SIZE, np.uint8)
    offsets = np.arange(ROWS + 1, dtype=np.int32) * SIZE
    bodies = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    batch = pa.record_batch({"body": bodies})
    is_over = threading.Event()

    def change() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            data[:] = number & 0xFF

    with stratalog.open(tmp_path / "store", mapped_file_size_commit_log=16 << 20) as store:
        queue = store.queue("t")
        queue.append(batch)
        thread = threading.Thread(target=change)
        thread.start()
        for _ in range(10):
            queue.append(batch)
        is_over.set()
        thread.join()
        assert [len(message.body) for message in queue.read()] == [SIZE] * ROWS * 11
