"""One damaged message hides no other: it is named on stderr, and the exit code is 1."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

import stratalog
from cli.calls import SETTINGS, Call, sentence
from store.kinds import BATCH, KINDS, Kind
from stratalog.cli.follow import follow
from stratalog.cli.intact import Intact


def flip_body(store: Path, body: bytes) -> None:
    """Change a body in the log that holds it once."""
    for path in (store / "commitlog").iterdir():
        data = path.read_bytes()
        if body in data:
            path.write_bytes(data.replace(body, body.swapcase()))
            return
    raise AssertionError(body)


def bodies_of(result: Result) -> list[str]:
    return [json.loads(line)["body"] for line in result.stdout.splitlines()]


def others(*damaged: int) -> list[str]:
    return [f"body 0-{number}" for number in range(10) if number not in damaged]


@pytest.mark.parametrize("damaged", [(0,), (4,), (9,), (0, 1, 2), (3, 7, 9), (0, 2, 4, 6, 8)], ids=str)
def test_get_shows_what_is_intact_and_names_the_rest(damaged: tuple[int, ...], small_store: Path, call: Call) -> None:
    for number in damaged:
        flip_body(small_store, b"body 0-%d" % number)
    for count in (10, 20):
        result = call("get", small_store, "orders", "-n", count, "--json")
        assert result.exit_code == 1
        assert bodies_of(result) == others(*damaged)
        named = result.stderr.splitlines()
        assert len(named) == len(damaged)
        for line, number in zip(named, damaged, strict=True):
            assert f"queue orders/0 offset {number} " in line
            assert "commitlog/00000000000000000000 at byte" in line
            assert "stratalog verify" in line
    assert call("get", small_store, "orders", "-q", 1).exit_code == 0


def test_get_takes_more_where_some_are_damaged_and_ends_where_it_was_asked_to(small_store: Path, call: Call) -> None:
    flip_body(small_store, b"body 0-4")
    result = call("get", small_store, "orders", "-o", 3, "-n", 3, "--json")
    assert bodies_of(result) == ["body 0-3", "body 0-5", "body 0-6"]
    assert call("get", small_store, "orders", "-n", 4).exit_code == 0, "it does not get as far as the damage"
    table = call("get", small_store, "orders")
    assert table.exit_code == 1
    assert "9 messages in" in table.stderr


def test_get_names_offsets_whose_messages_recovery_could_not_save(small_store: Path, call: Call) -> None:
    flip_body(small_store, b"body 0-4")
    (small_store / "abort").write_text("1")
    shutil.rmtree(small_store / "consumequeue")
    with stratalog.open(small_store, **SETTINGS) as store:
        assert len(store.recovery.quarantined) == 1
    result = call("get", small_store, "orders", "--json")
    assert result.exit_code == 1
    assert bodies_of(result) == others(4)
    note, line = result.stderr.splitlines()
    assert note.startswith("note: 1 damaged range of the log, the first at log offset ")
    assert line == "stratalog: orders/0: no message at offset 4: lost to damage earlier"


def test_get_names_each_message_where_all_of_a_queue_are_damaged(small_store: Path, call: Call) -> None:
    for number in range(10):
        flip_body(small_store, b"body 0-%d" % number)
    result = call("get", small_store, "orders", "--json")
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 10
    assert all(f"queue orders/0 offset {number} " in line for number, line in enumerate(lines))


@pytest.mark.parametrize("damaged", [(4,), (0, 9), tuple(range(10))], ids=str)
def test_query_shows_what_is_intact_and_names_the_rest(damaged: tuple[int, ...], small_store: Path, call: Call) -> None:
    for number in damaged:
        flip_body(small_store, b"body 0-%d" % number)
    result = call("query", small_store, "orders", "all", "--json")
    assert result.exit_code == 1
    assert sorted(bodies_of(result)) == sorted([*others(*damaged), *(f"body 1-{number}" for number in range(10))])
    named = result.stderr.splitlines()
    assert len(named) == len(damaged)
    for line, number in zip(reversed(named), damaged, strict=True):
        for part in (f"queue orders/0 offset {number}, log offset ", "commitlog/00000000000000000000 at byte"):
            assert part in line
        assert f"stratalog verify {small_store}" in line
    table = call("query", small_store, "orders", "all")
    assert (table.exit_code, f"{20 - len(damaged)} messages in" in table.stderr) == (1, True)
    assert call("query", small_store, "orders", "k1-3").exit_code == 0


def test_query_of_a_topic_that_is_not_there_names_those_that_are(small_store: Path, call: Call) -> None:
    assert "there is no topic order; there are orders" in sentence(call("query", small_store, "order", "all"))


def test_tail_goes_on_behind_damage(small_store: Path, call: Call) -> None:
    flip_body(small_store, b"body 0-4")
    result = call("tail", small_store, "orders", "-q", 0, "--count", 9, "--json")
    assert result.exit_code == 1
    assert bodies_of(result) == others(4)
    assert "offset 4" in result.stderr


def test_tail_meets_damage_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    intact = Intact()
    with stratalog.open(tmp_path, **SETTINGS) as store:
        store.put("orders", b"first")
        followed = follow(tmp_path, "orders", None, last=5, intact=intact)
        assert next(followed).body == b"first"
        receipt = store.put("orders", b"second")
        file, position = store.log.file_at(receipt.end_offset - 10)
        file.view[position - 5] ^= 0x10
        store.put("orders", b"third")
        assert next(followed).body == b"third"
        followed.close()  # type: ignore[attr-defined]
        file.view[position - 5] ^= 0x10
    assert intact.missing_count == 1
    assert "orders/0" in capsys.readouterr().err


@pytest.mark.parametrize(("new_count", "shown"), [(1, [b"new 0"]), (9, [b"new 7", b"new 8"])], ids=["fewer", "more"])
def test_tail_says_that_another_store_was_put_in_the_place(
    new_count: int, shown: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def put(name: str, count: int) -> None:
        with stratalog.open(tmp_path, **SETTINGS) as store:
            for number in range(count):
                store.put("orders", f"{name} {number}".encode())

    put("old", 4)
    followed = follow(tmp_path, "orders", None, last=2)
    assert [next(followed).body for _ in range(2)] == [b"old 2", b"old 3"]
    shutil.rmtree(tmp_path)
    put("new", new_count)
    assert [next(followed).body for _ in shown] == shown
    followed.close()  # type: ignore[attr-defined]
    error = capsys.readouterr().err
    assert f"orders/0 is not the queue that was read up to offset 4: it holds offsets [0, {new_count})" in error
    assert error.count("stratalog:") == 1


def lost_in_front(kind: Kind, root: Path) -> tuple[int, dict[int, str]]:
    """A store of which the first messages of a queue were damaged when its queues were built: how many of it are
    lost, and the others."""
    content = kind.made(root, count=12)
    messages = content.queues[kind.queues[0]]
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    lost = sorted({known.commit_log_offset for known in messages.values()})[:2]
    for offset in lost:
        data[offset : offset + 60] = b"\xff" * 60
    path.write_bytes(data)
    shutil.rmtree(root / kind.tree)
    for name in ("checkpoint", "queues.snapshot"):
        (root / name).unlink()
    (root / "abort").touch()
    kind.open(root).close()
    left = {at: known.body.decode() for at, known in messages.items() if known.commit_log_offset not in lost}
    return len(messages) - len(left), left


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_get_and_tail_name_lost_messages_in_front_of_all_others(kind: Kind, tmp_path: Path, call: Call) -> None:
    count, left = lost_in_front(kind, tmp_path)
    topic, queue_id = kind.queues[0]
    place = (tmp_path, topic, "--queue", queue_id, "--json")
    commands = [("get", *place, "-n", 100, *more) for more in ((), ("--offset", 0), ("--offset", 1), ("--time", 0))]
    for command in (*commands, ("tail", *place, "--last", 100, "--count", len(left))):
        result = call(*command)
        assert result.exit_code == 1, result.output
        assert bodies_of(result) == list(left.values())
        if kind is not BATCH:  # its first unit leads to another's record, which is an error of its own
            first = 1 if command[-2:] == ("--offset", 1) else 0
            what = f"offsets {first} to {count - 1}" if first < count - 1 else f"offset {first}"
            assert f"stratalog: {topic}/{queue_id}: no message at {what}: lost to damage earlier" in result.stderr
    for command in (("get", *place, "--offset", count), ("tail", *place, "--last", 2, "--count", 2)):
        assert call(*command).exit_code == 0, "it does not ask for them"


@pytest.mark.parametrize("is_crashed", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_get_and_tail_name_messages_that_were_lost_with_the_logs_end(
    kind: Kind, is_crashed: bool, tmp_path: Path, call: Call
) -> None:
    content = kind.made(tmp_path, count=12)
    topic, queue_id = kind.queues[0]
    messages = content.queues[topic, queue_id]
    end = sorted({known.commit_log_offset for known in messages.values()})[-2]
    path = tmp_path / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:end].ljust(path.stat().st_size, b"\0"))
    for name in ("checkpoint", "queues.snapshot", "lock"):  # as RocketMQ leaves a store
        (tmp_path / name).unlink()
    if is_crashed:
        (tmp_path / "abort").touch()
    left = [known.body.decode() for known in messages.values() if known.commit_log_offset < end]
    place = (tmp_path, topic, "--queue", queue_id, "--json")
    what = f"offsets {len(left)} to {len(messages) - 1}"
    why = "lost with the log's end" if is_crashed else "lost to damage earlier"
    commands = [("get", *place, "-n", 100), ("tail", *place, "--last", 100, "--count", len(left))]
    for command in commands if is_crashed else commands[:1]:  # else the queue still has their offsets: tail waits there
        result = call(*command)
        assert result.exit_code == 1, result.output
        assert bodies_of(result) == left
        assert f"stratalog: {topic}/{queue_id}: no message at {what}: {why}" in result.stderr
    assert call("get", *place, "-n", len(left)).exit_code == 0, "it does not ask for them"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_messages_that_retention_removed_are_not_missing(kind: Kind, tmp_path: Path, call: Call) -> None:
    content = kind.made(tmp_path, count=150)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    topic, queue_id = kind.queues[0]
    left = [known for known in content.queues[topic, queue_id].values() if known.commit_log_offset >= 16 * 1024]
    for more in ((), ("--time", 0)):
        result = call("get", tmp_path, topic, "--queue", queue_id, "-n", 1000, "--json", *more)
        assert (result.exit_code, len(result.stdout.splitlines())) == (0, len(left)), result.stderr
    assert "holds offsets" in sentence(call("get", tmp_path, topic, "--queue", queue_id, "--offset", 0))


def test_get_names_all_messages_of_a_queue_that_has_none_left(small_store: Path, call: Call) -> None:
    for number in range(10):
        flip_body(small_store, b"body 0-%d" % number)
    for name in ("checkpoint", "queues.snapshot"):
        (small_store / name).unlink()
    (small_store / "abort").touch()
    stratalog.open(small_store, **SETTINGS).close()
    result = call("get", small_store, "orders")
    assert result.exit_code == 1
    assert "orders/0: no message at offsets 0 to 9: lost to damage earlier" in result.stderr
