"""The unit of a queue's first message leads to before the log, as if the message had expired: a bit of it was flipped,
or its file is an older copy. `verify` reports it, `repair` serves the message, opening after a kill names it."""

import shutil
import struct
from pathlib import Path

import pytest

from store.kinds import BATCH, LIGHT_KIND, PLAIN, SIZES, Content, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, settings_of
from stratalog.config.settings import StoreSettings
from stratalog.layout.message import HEAD
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

APART = 12
"""Messages of another queue between two of it."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["killed", "index gone", "closed by RocketMQ", "killed with a seal"])
@pytest.mark.parametrize("gone", [2, 5, 7])
@pytest.mark.parametrize("kind", [PLAIN, LIGHT_KIND, BATCH], ids=str)
def test_it_is_served(kind: Kind, gone: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 4096)
    key, content = kind.queues[0], Content()
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        for number in range(12):
            kind.put(store, number, content)
            for _ in range(APART):
                store.put("busy", b"." * 500)
    log = sorted((tmp_path / "commitlog").iterdir())
    for path in log[:gone]:
        path.unlink()
    begin = int(log[gone].name)
    kind.open(tmp_path).close()
    STATES[state](tmp_path)
    expected = {number: one for number, one in content.queues[key].items() if one.commit_log_offset >= begin}
    first = expected[min(expected)]
    file = next(
        path for path in kind.files(tmp_path, key) if struct.pack(">q", first.commit_log_offset) in path.read_bytes()
    )
    stored = bytearray(file.read_bytes())
    at = stored.index(struct.pack(">q", first.commit_log_offset))
    before = struct.unpack_from(">q", stored, at - kind.layout.size)[0] if at else -1
    bits = [1 << bit for bit in range(20) if before < first.commit_log_offset ^ 1 << bit < begin]
    if not bits:
        pytest.skip("no such bit")
    struct.pack_into(">q", stored, at, first.commit_log_offset ^ bits[0])
    file.write_bytes(stored)
    assert not verify(tmp_path, settings=settings_of(kind)).ok
    if state == "killed":
        with kind.open(shutil.copytree(tmp_path, tmp_path.with_name("opened"))) as store:
            found, errors, _ = read_on(store.queue(*key))
            assert found.items() <= expected.items()
            assert found == expected or errors or store.recovery.warning or store.recovery.notes
    repair(plan_repair(tmp_path, settings=settings_of(kind)))
    with kind.open(tmp_path, mode="r") as store:
        assert read_on(store.queue(*key))[0] == expected


@pytest.mark.parametrize("state", ["killed", "closed by RocketMQ", "closed"])
def test_a_message_of_another_queue_is_not_taken_for_the_one_in_front(state: str, tmp_path: Path) -> None:
    """One bit makes a record name the queue whose first message it would join."""
    root, offsets = tmp_path / "store", dict[tuple[int, int], int]()
    with PLAIN.open(root, mapped_file_size_commit_log=4096, clock_ns=Clock()) as store:
        for number in range(30):
            for queue_id in (0, 1):
                receipt = store.put(
                    "p", b"m%d.%d" % (number, queue_id) + b"." * (200 + 37 * (number % 5)), queue_id=queue_id
                )
                offsets[queue_id, number] = receipt.commit_log_offset
    log = sorted((root / "commitlog").iterdir())
    number, begin = next(
        (number, int(path.name)) for path in log for number in range(30)
        if offsets[0, number] < int(path.name) <= offsets[1, number]
    )  # fmt: skip
    for path in log:
        if int(path.name) < begin:
            path.unlink()
    PLAIN.open(root, mapped_file_size_commit_log=4096).close()
    STATES[state](root)
    at = offsets[1, number] - begin + HEAD.position("queue_id")
    path = root / "commitlog" / f"{begin:020d}"
    data = bytearray(path.read_bytes())
    data[at + 3] ^= 1
    path.write_bytes(data)
    settings = StoreSettings().override(SIZES | {"mapped_file_size_commit_log": 4096})
    assert not verify(root, settings=settings).ok
    with PLAIN.open(shutil.copytree(root, tmp_path / "opened"), mapped_file_size_commit_log=4096) as store:
        assert store.queue("p").min_offset == number + 1
        assert [message.queue_offset for message in store.queue("p").read()] == [*range(number + 1, 30)]
    repair(plan_repair(root, settings=settings))
    with PLAIN.open(root, mode="r", mapped_file_size_commit_log=4096) as store:
        for queue_id, first in ((0, number + 1), (1, number)):
            found = {message.queue_offset: message.commit_log_offset for message in store.queue("p", queue_id).read()}
            assert found == {one: offsets[queue_id, one] for one in range(first, 30)}
