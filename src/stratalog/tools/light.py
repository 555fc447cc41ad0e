"""Whether the log holds messages of light queues.

A store has light queues where its settings say so or a directory `%LMQ%...` is below consumequeue/ (see
`queue_set.has_light_queues`). When those directories are gone, only the records tell.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray

from stratalog.layout.light import MULTI_QUEUE_OFFSET, is_light, light_places
from stratalog.layout.message import HEAD, decode_record
from stratalog.layout.properties import NAME_END
from stratalog.layout.sysflag import enters_queue
from stratalog.store.disk import MappedFile

_SIGN = (MULTI_QUEUE_OFFSET + NAME_END).encode()
_LIBC = ctypes.CDLL(None)
_LIBC.memmem.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t
_LIBC.memmem.restype = ctypes.c_void_p


def first_light(file: MappedFile, positions: NDArray[np.int64], base_offset: int) -> tuple[str, int] | None:
    """The light queue and the log offset of the first of these records of a file that stands in one."""
    if not len(positions):
        return None
    data, at, last = file.view.data, int(positions[0]), int(positions[-1])
    end = last + HEAD.unpack(data, last).total_size
    while at < end:
        hit = _LIBC.memmem(file.address + at, end - at, _SIGN, len(_SIGN))
        if hit is None:
            return None
        number = int(np.searchsorted(positions, hit - file.address, "right")) - 1
        position = int(positions[number])
        record = decode_record(data, position, verify=False)
        topic = record.topic.decode("utf-8", "surrogateescape")
        places, _ = light_places(topic, record.properties, base_offset + position)
        if places and enters_queue(record.sys_flag) and not is_light(topic):
            return places[0][0], base_offset + position
        at = int(positions[number + 1]) if number + 1 < len(positions) else end
    return None
