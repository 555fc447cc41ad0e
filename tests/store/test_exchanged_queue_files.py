"""Two files of a queue change places, or one takes another's: an opening serves nothing in a wrong place, and gives no
offset a second time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import KINDS, Content, Kind, read_on
from store.test_recreated_topics import STATES


def last_two(files: list[Path]) -> None:
    exchange(files[-2], files[-1])


def first_and_last(files: list[Path]) -> None:
    exchange(files[0], files[-1])


def last_over_first(files: list[Path]) -> None:
    files[0].write_bytes(files[-1].read_bytes())


def last_becomes_first(files: list[Path]) -> None:
    files[-1].rename(files[0])


def exchange(one: Path, other: Path) -> None:
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


@pytest.mark.one_in(60)
@pytest.mark.parametrize("harm", [last_two, first_and_last, last_over_first, last_becomes_first])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("count", [17, 25, 26, 33, 34, 36, 40, 75])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_messages_keep_their_offsets(
    kind: Kind, count: int, state: str, harm: Callable[[list[Path]], None], tmp_path: Path
) -> None:
    content, key = kind.made(tmp_path, count=count), kind.queues[0]
    expected = dict(content.queues[key])
    STATES[state](tmp_path)
    files = kind.files(tmp_path, key)
    if len(files) < 2:
        pytest.skip("one file")
    harm(files)
    with kind.open(tmp_path) as store:
        found, errors, _ = read_on(store.queue(*key))
        assert found.items() <= expected.items()
        assert found == expected or errors or store.recovery.warning or store.recovery.notes
        for number in range(count, count + 6):
            kind.put(store, number, Content())
        put = {number for number in read_on(store.queue(*key))[0] if number not in expected}
        assert put
        assert store.queue(*key).max_offset >= len(expected) + len(put)
