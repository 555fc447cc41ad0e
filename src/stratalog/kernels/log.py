"""Finding a record in the log, for use inside kernels.

A log is given as `(addresses, first_offset, file_size)`: file i begins at log offset `first_offset + i * file_size` and
stands at `addresses[i]`, 0 if it is not there.
"""

from stratalog.kernels.jit import part
from stratalog.kernels.queue_table import Int64Array
from stratalog.layout.message import FIXED_SIZE_V1

_SIZE_MIN = FIXED_SIZE_V1


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
