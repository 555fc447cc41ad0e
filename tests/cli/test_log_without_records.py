"""A store that RocketMQ closed and whose log lost every record: each command says so."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.calls import Call, sentence
from golden.cases import golden_case
from store.kinds import KINDS, Content, Kind
from store.model import Clock
from store.test_recreated_topics import STATES, fill
from stratalog.layout.message import MAGIC_V1, MAGIC_V2


def overwritten(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def without_magics(path: Path) -> None:
    stored = path.read_bytes()
    for magic in (MAGIC_V1, MAGIC_V2):
        stored = stored.replace(magic.to_bytes(4, signed=True), b"none")
    path.write_bytes(stored)


@pytest.mark.parametrize("command", ["get", "query", "tail", "put"])
@pytest.mark.parametrize("damage", [overwritten, without_magics], ids=["overwritten", "magics"])
@pytest.mark.parametrize("case", ["retry-dlq", "compressed", "inner-batch", "lmq"])
def test_no_command_takes_a_log_without_a_record_for_an_empty_store(
    case: str, damage: Callable[[Path], None], command: str, tmp_path: Path, call: Call
) -> None:
    root = golden_case(f"local/{case}").unpack_store(tmp_path)
    (path,) = (root / "commitlog").iterdir()
    damage(path)
    rest = {"query": ["key"], "tail": ["--count", "1"], "put": ["body"]}.get(command, [])
    assert "not one whole record is in its log" in sentence(call(command, root, "TopicA", *rest))


@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ"])
@pytest.mark.parametrize("is_expired", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_get_names_that_a_queue_lost_what_it_had(
    kind: Kind, is_expired: bool, state: str, tmp_path: Path, call: Call
) -> None:
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        fill(kind, store, Content(), 0, 120)
    STATES[state](tmp_path)
    *older, newest = [path for path in sorted((tmp_path / "commitlog").iterdir()) if any(path.read_bytes())]
    newest.write_bytes(bytes(newest.stat().st_size))
    for path in older:
        path.unlink() if is_expired else path.write_bytes(bytes(path.stat().st_size))
    topic, queue_id = kind.queues[0]
    done = call("get", tmp_path, topic, "-q", str(queue_id))
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{topic}/{queue_id}: no message " in done.stderr or "not one whole record" in done.stderr
