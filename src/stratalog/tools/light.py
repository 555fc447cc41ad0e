"""Whether the log holds messages of light queues.

A store has light queues where its settings say so or a directory `%LMQ%...` is below consumequeue/ (see
`queue_set.has_light_queues`). When those directories are gone, only the records tell.
"""

import numpy as np
from numpy.typing import NDArray

from stratalog.layout.light import MULTI_QUEUE_OFFSET, allows_light, is_light, light_places
from stratalog.layout.message import HEAD, decode_record
from stratalog.layout.properties import NAME_END
from stratalog.layout.sysflag import enters_queue
from stratalog.store.disk import MappedFile

_SIGN = (MULTI_QUEUE_OFFSET + NAME_END).encode()
_PIECE = 1 << 18


def first_light(file: MappedFile, positions: NDArray[np.int64], base_offset: int) -> tuple[str, int] | None:
    """The light queue and the log offset of the first of these records of a file that stands in one."""
    if not len(positions):
        return None
    data, at, last = file.view.data, int(positions[0]), int(positions[-1])
    end = last + HEAD.unpack(data, last).total_size
    while at < end:
        hit = bytes(data[at : min(end, at + _PIECE + len(_SIGN) - 1)]).find(_SIGN)
        if hit < 0:
            at += _PIECE
            continue
        number = int(np.searchsorted(positions, at + hit, "right")) - 1
        position = int(positions[number])
        record = decode_record(data, position, verify=False)
        topic = record.topic.decode("utf-8", "surrogateescape")
        places, _ = light_places(record.properties, base_offset + position)
        if places and enters_queue(record.sys_flag) and allows_light(topic) and not is_light(topic):
            return places[0][0], base_offset + position
        at = int(positions[number + 1]) if number + 1 < len(positions) else end
    return None
