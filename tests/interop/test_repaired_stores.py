"""RocketMQ opens stores of every kind that were damaged at random and repaired: the oracle's messages are there."""

import base64
import random
from pathlib import Path

import pytest

from interop.rocketmq import RocketMQ, camel_case
from interop.views import java_settings
from store.damage import GIVEN, KINDS, LIGHT_NAMES, SETTINGS, Key, Oracle, Original, inflict
from store.model import QUIET
from stratalog.errors import CorruptData
from stratalog.layout.message import LOST_FLAG
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

pytestmark = pytest.mark.one_in(2)

SEED = 20261122


def repaired(kind: str, folder: Path) -> tuple[Path, Oracle]:
    """The first store of this seed that was damaged in two ways or more, and of which everything is known."""
    original, other = (Original(folder / f"{seed}", kind, record_crc=False, seed=seed) for seed in (1, 2))
    for number in range(100):
        chance = random.Random(f"{SEED} {kind} {number}")
        root = original.copy(folder / "store")
        done = inflict(original, root, chance, other)
        oracle = Oracle(original, root)
        if len(done) < 2 or any("another store" in text for text in done) or not oracle.changed:
            continue
        try:
            plan = plan_repair(root, settings=GIVEN)
        except CorruptData:
            continue
        assert repair(plan).ok
        if oracle.check(root, plan) is None:
            return root, oracle
    raise AssertionError("no store was damaged")


@pytest.mark.parametrize("kind", KINDS)
def test_rocketmq_serves_what_a_repair_kept_and_nothing_else(
    kind: str, releases: dict[str, RocketMQ], tmp_path: Path
) -> None:
    rocketmq = releases["5.3.3" if kind in ("delay", "transaction") else "5.5.0"]
    root, oracle = repaired(kind, tmp_path)
    puts = {key: put for put in oracle.original.puts for key in put.keys}
    sizes = {name: value for name, value in SETTINGS.items() if name not in QUIET}  # it would wait for them to close
    settings = java_settings({}, **camel_case(sizes))
    assert rocketmq.ask("open", directory=str(root), settings=settings)["loaded"]
    served: dict[Key, int] = {}
    for queue in rocketmq.ask("read")["queues"]:
        for message in queue["messages"]:
            if message["flag"] == LOST_FLAG or queue["topic"] in LIGHT_NAMES:
                continue
            key = queue["topic"], queue["queue_id"], message["queue_offset"]
            assert base64.b64decode(message["body"]) == puts[key].record.body, key
            if message["unit_offset"] == message["queue_offset"]:  # else a neighbour's, in place of a lost one
                served |= {(*key[:2], key[2] + member): puts[key].offset for member in range(message["batch_count"])}
    rocketmq.ask("close")
    must = {key for key, put in puts.items() if put.offset in oracle.intact | oracle.readable}
    must = {key for key in must if puts[key].offset >= oracle.log_begin}
    assert must <= served.keys(), sorted(must - served.keys())[:5]
