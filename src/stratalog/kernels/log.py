"""Finding a record in the log, for use inside kernels.

A log is given as `(addresses, first_offset, file_size)`: file i begins at log offset `first_offset + i * file_size` and
stands at `addresses[i]`, 0 if it is not there.
"""

from stratalog.kernels.jit import part
from stratalog.kernels.memory import load_i32, load_i64, prefetch
from stratalog.kernels.queue_table import Int64Array
from stratalog.layout.message import FIXED_SIZE_V1
from stratalog.layout.queue import UNIT

_SIZE_MIN = FIXED_SIZE_V1
_UNIT_SIZE, _UNIT_OFFSET, _UNIT_RECORD_SIZE = UNIT.size, UNIT.position("commit_log_offset"), UNIT.position("size")

_CACHE_LINE = 64
_AHEAD, _AHEAD_SIZE_MAX = 8, 320
"""Records of a queue lie apart, so the CPU does not foresee the next one: ask for it this many units before."""


@part
def place_of(addresses: Int64Array, first_offset: int, file_size: int, offset: int, size: int) -> tuple[int, int]:
    """Address of the file and position in it of `size` bytes at a log offset.

    The address is 0 when the file is not there, or when a unit that says so cannot be true: no record is that small, or
    it would leave its file. Units may be damaged; nothing is read here.
    """
    distance = offset - first_offset
    if distance < 0 or distance >= addresses.size * file_size or size < _SIZE_MIN:
        return 0, 0
    number = distance // file_size
    position = distance - number * file_size
    if size > file_size - position:
        return 0, 0
    return addresses[number], position


@part
def prefetch_ahead(unit: int, left: int, record: int) -> None:
    """Have the record of a later unit fetched. `left` units are left with this one, whose record is at `record`.

    That unit may be damaged, and lead anywhere.
    """
    if left <= _AHEAD:
        return
    later = unit + _UNIT_SIZE * _AHEAD
    at = record + load_i64(later + _UNIT_OFFSET) - load_i64(unit + _UNIT_OFFSET)
    for line in range(0, min(load_i32(later + _UNIT_RECORD_SIZE), _AHEAD_SIZE_MAX), _CACHE_LINE):
        prefetch(at + line)
