"""The unit of a queue's first message leads to before the log, as if the message had expired: a bit of it was flipped,
or its file is an older copy. An opening that reads the whole log serves the message."""

import struct
from pathlib import Path

import pytest

from store.kinds import BATCH, LIGHT_KIND, PLAIN, Content, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, settings_of
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
    if state in ("killed", "index gone"):
        with kind.open(tmp_path) as store:
            assert read_on(store.queue(*key))[0] == expected
    else:
        repair(plan_repair(tmp_path, settings=settings_of(kind)))
        with kind.open(tmp_path, mode="r") as store:
            assert read_on(store.queue(*key))[0] == expected
