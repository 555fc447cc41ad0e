"""What is damaged is never served: it is named, and everything behind it can be read."""

import pytest

from store.conftest import OpenStore
from store.kinds import EXTENDED, LIGHT_EXTENDED, LIGHT_KIND, PLAIN, Kind, read_on
from store.model import LOG_FILE_SIZE, queue_files, scratch_folder
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD, Host
from stratalog.layout.queue import UNIT
from stratalog.store import lookup, reading
from stratalog.store.consume_queue import _NO_OLDEST
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue

COUNT = 40
ROTTEN = 17


@pytest.fixture(params=["native", "python"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the native readers, and with what stands in for them on an interpreter without a GIL."""
    if request.param == "python":
        monkeypatch.setattr(reading, "ready_or_started", lambda: False)
        monkeypatch.setattr(lookup, "ready_or_started", lambda: False)


def filled(open_store: OpenStore) -> MessageStore:
    store = open_store(checked=False)
    for number in range(COUNT):
        store.put("t", b"body %02d" % number * 9, keys=[f"k{number}", "all"], unique_key=f"u{number}", tags="x")
    store.dispatch()
    return store


def damage(store: MessageStore, number: int, position: int) -> Message:
    """Flip a bit of a message's record in the mapping; returns the message as it was."""
    message = next(store.queue("t").read(number, count=1))
    file, start = store.log.file_at(message.commit_log_offset)
    file.view[start + position] ^= 0x10
    return message


def read_all(queue: Queue) -> tuple[list[int], list[CorruptData]]:
    """Offsets of everything that can be read, going on behind each damaged place."""
    offsets: list[int] = []
    errors: list[CorruptData] = []
    start = 0
    while True:
        try:
            for message in queue.read(start):
                offsets.append(message.queue_offset)
                start = message.queue_offset + 1
            return offsets, errors
        except CorruptData as error:
            errors.append(error)
            start = error.next_offset


BODY = HEAD.size + 3
_FIELDS = ("total_size", "magic", "body_crc", "queue_id", "queue_offset", "commit_log_offset", "body_size")
POSITIONS = [BODY, *map(HEAD.position, _FIELDS)]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("position", POSITIONS)
def test_a_flipped_bit_hides_its_message_only_and_is_located(position: int, open_store: OpenStore) -> None:
    store = filled(open_store)
    message = damage(store, ROTTEN, position)
    offsets, errors = read_all(store.queue("t"))
    assert offsets == [number for number in range(COUNT) if number != ROTTEN]
    [error] = errors
    assert error.next_offset == ROTTEN + 1
    file, start = store.log.file_at(message.commit_log_offset)
    assert (error.path, error.position) == (str(file.path), start)
    assert f"queue t/0 offset {ROTTEN}" in str(error)


def test_every_bit_of_a_body_is_watched(open_store: OpenStore) -> None:
    store = filled(open_store)
    message = next(store.queue("t").read(ROTTEN, count=1))
    file, start = store.log.file_at(message.commit_log_offset)
    for bit in range(8 * len(message.body)):
        file.view[start + HEAD.size + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData, match="checksum"):
            next(store.queue("t").read(ROTTEN, count=1))
        file.view[start + HEAD.size + bit // 8] ^= 1 << bit % 8
    assert next(store.queue("t").read(ROTTEN, count=1)) == message


@pytest.mark.usefixtures("either_way")
def test_a_rotten_body_is_not_served_by_id_nor_by_key(open_store: OpenStore) -> None:
    store = filled(open_store)
    message = damage(store, ROTTEN, BODY)
    with pytest.raises(CorruptData, match="checksum"):
        store.message(message.commit_log_offset)
    file, start = store.log.file_at(message.commit_log_offset)
    whole = [number for number in range(COUNT) if number != ROTTEN]
    for key, intact in ((f"k{ROTTEN}", []), (f"u{ROTTEN}", []), ("all", whole)):
        for hits in (store.query("t", key=key), store.query("t", key=key, limit=None)):
            assert ([hit.queue_offset for hit in hits], hits.more) == (intact, False)
            [error] = hits.damaged
            assert (error.path, error.position) == (str(file.path), start)
            for part in (f"queue t/0 offset {ROTTEN}, log offset {message.commit_log_offset:,}", "checksum", "verify"):
                assert part in str(error)
    many = store.query_many("t", ["k1", f"k{ROTTEN}", "k2", "all"])
    assert [[hit.queue_offset for hit in hits] for hits in many.values()] == [[1], [], [2], whole]
    assert {key: len(errors) for key, errors in many.damaged.items()} == {f"k{ROTTEN}": 1, "all": 1}
    newest = store.query("t", key="all", limit=COUNT - 1 - ROTTEN)
    assert ([hit.queue_offset for hit in newest], newest.more, newest.damaged) == (whole[ROTTEN:], True, [])
    assert not store.query("t", key="k16").damaged
    assert [hit.queue_offset for hit in store.query("t", key="k16")] == [16]
    others = [offset for offset in store.candidates("t", key="all") if offset != message.commit_log_offset]
    assert sorted(store.message(offset).queue_offset for offset in others) == [n for n in range(COUNT) if n != ROTTEN]


@pytest.mark.parametrize("position", [BODY, 0, HEAD.position("queue_offset")])
def test_an_arrow_batch_with_a_damaged_message_is_refused_and_those_around_it_are_read(
    position: int, open_store: OpenStore
) -> None:
    store = filled(open_store)
    damage(store, ROTTEN, position)
    queue = store.queue("t")
    with pytest.raises(CorruptData, match=f"queue t/0 offset {ROTTEN} ") as refused:
        queue.read_arrow(5, columns=["queueOffset"])
    assert refused.value.next_offset == ROTTEN + 1
    rows = queue.read_arrow(5, count=ROTTEN - 5, columns=["queueOffset"])["queueOffset"].to_pylist()
    rows += queue.read_arrow(ROTTEN + 1, columns=["queueOffset"])["queueOffset"].to_pylist()
    assert rows == [number for number in range(5, COUNT) if number != ROTTEN]


@pytest.mark.usefixtures("either_way")
def test_a_unit_that_leads_to_another_queues_record_is_not_followed(open_store: OpenStore) -> None:
    """The records have the same queue offset: only topic and queue id tell them apart."""
    store = open_store(checked=False)
    places = {(topic, queue): store.put(topic, b"x", queue_id=queue) for topic in "tu" for queue in (0, 1)}
    store.put("t", b"y")  # opening compares the newest unit with its record
    store.close()
    for number, name in enumerate([("u", 0), ("t", 1)]):
        path = queue_files(store.root, "t")[0]
        other = places[name]
        stored = UNIT.pack(other.commit_log_offset, other.store_size, 0)
        path.write_bytes(stored + path.read_bytes()[UNIT.size :])
        again = open_store(checked=False, mode="r")
        with pytest.raises(CorruptData, match="another message"):
            list(again.queue("t").read())
        with pytest.raises(CorruptData, match="another message"):
            again.queue("t").read_arrow()
        again.close()
        assert number < 2


@pytest.mark.usefixtures("either_way")
def test_messages_of_every_shape_are_read_as_they_were_put(open_store: OpenStore) -> None:
    """IPv6 hosts, long topics, empty bodies, negative flags: the native readers know them all."""
    store = open_store(mapped_file_size_commit_log=LOG_FILE_SIZE)
    v6 = Host(bytes(range(16)), 65535)
    for topic in ("t", "%RETRY%" + "g" * 130):
        queue = store.queue(topic)
        for born, stored in ((None, None), (v6, None), (None, v6), (v6, v6)):
            queue.put_record(
                b"", b"TAGS\x01a\x02", flag=-5, born_host=born, store_host=stored, reconsume_times=3,
                prepared_transaction_offset=77,
            )  # fmt: skip
            queue.put_record(b"body" * 50, b"\xff\xfe", born_host=born, store_host=stored, born_timestamp=-1)
        found = list(queue.read())
        assert [(one.born_host, one.store_host) for one in found[::2]] == [
            (born or queue.host, stored or queue.host)
            for born, stored in ((None, None), (v6, None), (None, v6), (v6, v6))
        ]
        assert all(
            (one.flag, one.reconsume_times, one.prepared_transaction_offset) == (-5, 3, 77) for one in found[::2]
        )
        assert [one.body for one in found] == [b"", b"body" * 50] * 4
        assert found == [store.message(one.commit_log_offset) for one in found]
        assert {one.topic for one in found} == {topic}


@pytest.mark.one_in(36)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
@pytest.mark.parametrize(
    ("count", "damaged"),
    [(1, UNIT.pack(0, 0, 0)), (25, UNIT.pack(0, 0, 0)), (1, bytes(8)), (1, UNIT.pack(1, 90, 7))],
    ids=["zeros", "many zeros", "offset 0", "offset 1"],
)
def test_damaged_units_hide_no_message_of_a_log_whose_first_file_is_gone(
    kind: Kind, count: int, damaged: bytes
) -> None:
    """They are found by a search for the first message in the log; of messages in it those before them count, too."""
    with scratch_folder() as root:
        content = kind.made(root, count=160)
        first, second, *_ = sorted((root / "commitlog").iterdir())
        first.unlink()
        kind.open(root).close()
        key, begin = kind.queues[0], int(second.name)
        live = {n: known for n, known in content.queues[key].items() if known.commit_log_offset >= begin}
        files = kind.files(root, key)
        whole = [path.read_bytes() for path in files]
        size, start = len(whole[0]), int(files[0].name)
        assert len(live) > 25
        for number in range(start // UNIT.size, max(live) + 2 - count):
            stored = bytearray(b"".join(whole))
            for at in range(number, number + count):
                stored[at * UNIT.size - start : at * UNIT.size - start + len(damaged)] = damaged
            with kind.open(root, mode="r") as store:
                for place, path in enumerate(files):
                    path.write_bytes(stored[place * size : (place + 1) * size])
                queue = store.queue(*key)
                store.units_of(queue)._oldest = _NO_OLDEST  # as in a store whose snapshot holds
                found, _, named = read_on(queue)
            for path, data in zip(files, whole, strict=True):
                path.write_bytes(data)
            wrong = set(range(number, number + count))
            assert found == {n: known for n, known in live.items() if n not in wrong}, number
            assert live.keys() & wrong <= named <= wrong, number
