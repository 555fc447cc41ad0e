"""Files of two light queues are exchanged while a store is open, and two units in one of them: no message is served at
another queue offset than its own."""

from itertools import combinations
from pathlib import Path

import pytest

from store.kinds import LIGHT_EXTENDED, LIGHT_KIND, QUEUE_FILE_UNITS, Kind, read_on
from stratalog.layout.queue import UNIT


@pytest.mark.one_in(36)
@pytest.mark.parametrize("file", [-2, -1])
@pytest.mark.parametrize("count", range(34, 46))
@pytest.mark.parametrize("kind", [LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_each_message_is_served_at_its_offset_or_named(kind: Kind, count: int, file: int, tmp_path: Path) -> None:
    content = kind.made(tmp_path, count=count, enabled_append_prop_crc=True)
    paths = [kind.files(tmp_path, key)[file] for key in kind.queues]
    stored = [path.read_bytes() for path in paths]
    with kind.open(tmp_path, mode="r") as store:
        store.queues()
        for exchanged, pair in [(n, pair) for n in (0, 1) for pair in combinations(range(QUEUE_FILE_UNITS), 2)]:
            paths[0].write_bytes(stored[1])
            paths[1].write_bytes(stored[0])
            paths[exchanged].write_bytes(swapped(stored[1 - exchanged], *pair))
            for key in kind.queues:
                found, _, named = read_on(store.queue(*key))
                assert found.items() <= content.queues[key].items(), f"{key}, units {pair} of {kind.queues[exchanged]}"
                assert content.queues[key].keys() - found.keys() <= named


def swapped(data: bytes, one: int, other: int) -> bytes:
    units = [data[at : at + UNIT.size] for at in range(0, len(data), UNIT.size)]
    units[one], units[other] = units[other], units[one]
    return b"".join(units)
