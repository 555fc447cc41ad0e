"""A store that RocketMQ closed and whose log lost every record: each command says so."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.calls import Call, sentence
from golden.cases import golden_case
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
