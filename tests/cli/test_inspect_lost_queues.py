"""`stratalog inspect` of a store whose queues lost messages says so; of any other store it does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from cli.calls import SETTINGS, Call
from golden.cases import golden_case, golden_names
from store.kinds import KINDS, Kind
from stratalog.layout.names import ABORT
from stratalog.layout.queue import UNIT
from stratalog.store.disk import Disk
from stratalog.store.snapshot import forget_ends
from stratalog.tools.map import map_store
from stratalog.tools.verify import verify


def zeroed(path: Path) -> None:
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        file.write_bytes(bytes(file.stat().st_size))


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """360 messages in three queues of two files each, 300 of them in `orders/0` and `orders/1`."""
    sizes = SETTINGS | {"mapped_file_size_consume_queue": 2000}
    with stratalog.open(tmp_path / "store", **sizes) as opened:
        for number in range(360):
            name = ("late", 0) if number % 6 == 5 else ("orders", number % 6 % 2)
            opened.put(name[0], b"b" * 250, queue_id=name[1], keys=[f"k{number}"])
    return tmp_path / "store"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "no snapshot"])
@pytest.mark.parametrize(
    ("damage", "path", "held", "short"),
    [(removed, "orders/1", 240, 1), (removed, "orders", 60, 2), (zeroed, "orders/1", 240, 1),
     (removed, "orders/1/00000000000000002000", 340, 1), (zeroed, "orders/1/00000000000000002000", 340, 1),
     (removed, "orders/1/00000000000000000000", 260, 0), (zeroed, "orders/1/00000000000000000000", 260, 0),
     (removed, "", 0, 3), (zeroed, "", 0, 3)],
)  # fmt: skip
def test_what_the_queues_lost_is_said(
    damage: Callable[[Path], None], path: str, held: int, short: int, is_sealed: bool, store: Path, call: Call
) -> None:
    (shown,) = map(json.loads, call("inspect", store, "--json").stdout.splitlines())
    assert (shown["unqueued"], shown["shortQueues"]) == (0, [])
    assert "missing" not in call("inspect", store).stdout
    damage(store / "consumequeue" / path)
    if not is_sealed:
        forget_ends(store, Disk())
    (shown,) = map(json.loads, call("inspect", store, "--json").stdout.splitlines())
    assert sum(queue["messages"] for queue in shown["queues"]) == held
    assert shown["unqueued"] == 360 - held
    assert len(shown["shortQueues"]) == (short if is_sealed else 0)
    assert sum(one["sealedEnd"] - one["maxOffset"] for one in shown["shortQueues"]) == (
        360 - held if is_sealed and short else 0
    )
    text = " ".join(call("inspect", store).stdout.split())
    assert f"see `stratalog verify {store}`" in text
    assert f"at least {shown['unqueued']} message" in text
    assert "behind" not in text
    (store / ABORT).touch()  # opening adds what is missing
    assert "missing" not in call("inspect", store).stdout


@pytest.mark.parametrize("damage", [zeroed, removed])
@pytest.mark.parametrize("case", ["plain-5.5.0", "plain-5.3.3", "delay", "lmq", "inner-batch", "transaction"])
def test_a_store_of_rocketmq_is_held_against_its_log(
    case: str, damage: Callable[[Path], None], tmp_path: Path, call: Call
) -> None:
    root = golden_case(f"local/{case}").unpack_store(tmp_path)
    trees = [root / "consumequeue", root / "batchconsumequeue"]
    queues = [queue for tree in trees for queue in sorted(tree.glob("*/*")) if not queue.parent.name.startswith("%LMQ")]
    queue = next(queue for queue in queues if any(zero.read_bytes().strip(b"\0") for zero in queue.iterdir()))
    assert "missing" not in call("inspect", root).stdout
    damage(queue)
    text = " ".join(call("inspect", root).stdout.split())
    assert " of the log in no queue: see `stratalog verify" in text


@pytest.mark.one_in(36)
@pytest.mark.parametrize("case", golden_names("local"))
def test_a_whole_store_of_rocketmq_lacks_nothing(case: str, tmp_path: Path) -> None:
    root = golden_case(case).unpack_store(tmp_path)
    if (root / "commitlog").is_dir() and verify(root).ok:
        shown = map_store(root)
        assert (shown.unqueued_count, shown.short_queues) == (0, [])
        with stratalog.open(root):
            pass
        shown = map_store(root)
        assert (shown.unqueued_count, shown.short_queues) == (0, [])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_whole_store_lacks_nothing(kind: Kind, tmp_path: Path) -> None:
    kind.made(tmp_path)
    for path in [None, *sorted((tmp_path / "commitlog").iterdir())[:-1]]:  # then expired, file by file
        if path:
            path.unlink()
        shown = map_store(tmp_path)
        assert (shown.is_closed, shown.unqueued_count, shown.short_queues) == (True, 0, [])
        with kind.open(tmp_path):
            pass
        shown = map_store(tmp_path)
        assert (shown.unqueued_count, shown.short_queues) == (0, [])


@pytest.mark.parametrize("bit", [62, 55, 48])
def test_a_damaged_newest_unit_does_not_make_the_log_longer(bit: int, store: Path) -> None:
    file = store / "consumequeue" / "orders" / "1" / "00000000000000002000"
    at = 19 * UNIT.size
    data = bytearray(file.read_bytes())
    data[at : at + 8] = (int.from_bytes(data[at : at + 8], "big") ^ 1 << bit).to_bytes(8, "big")
    file.write_bytes(data)
    assert not any("show that it reached" in note for note in map_store(store).notes)
