"""A large store that takes little disk and few seconds: whole log files whose records leave most of them to a blank."""

from pathlib import Path

import stratalog
from stratalog.store.disk import Disk

FILE_SIZE = 1 << 30
FILE_COUNT = 94
LOG_SIZE = FILE_COUNT * FILE_SIZE
"""Bytes of log: 100 GB and a little more."""
QUEUE_COUNT = 10_000
_TOPICS = 100


class SparseDisk(Disk):
    """Allocates nothing: what is not written takes no room. For stores that are made to be large, not to be kept."""

    def allocate(self, path: Path, size: int) -> None:
        self.create_sparse(path, size)


def make_sparse_store(folder: Path) -> None:
    """A store with LOG_SIZE bytes of log in full files, and QUEUE_COUNT queues with one message each at least; closed.

    Every log file but the last is closed by its blank record early, as a file is by a record that does not fit.
    """
    with stratalog.open(folder, disk=SparseDisk(), mapped_file_size_commit_log=FILE_SIZE) as store:
        share = -(-QUEUE_COUNT // FILE_COUNT)
        for number in range(FILE_COUNT):
            for queue in range(number * share, min(QUEUE_COUNT, (number + 1) * share)):
                store.put(f"topic-{queue % _TOPICS}", b"x" * 1024, queue_id=queue // _TOPICS, keys=f"key-{queue}")
            if number < FILE_COUNT - 1:
                with store.log.locks.append[0], store.log.busy:
                    store.log.position_for(FILE_SIZE - 8)
