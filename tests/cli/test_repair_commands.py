"""`verify`, `repair`, `rebuild` as commands: plans before acts, exit codes; who only looks touches no byte."""

import errno
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import stratalog
from cli.calls import SETTINGS, Call, sentence
from golden.cases import golden_case
from store.kinds import KINDS, LIGHT_KIND, PLAIN, SIZES, Kind
from store.model import scratch_folder
from store.test_misplaced_queues import fill, moved
from stratalog.cli import progress
from stratalog.cli.output import offsets_text
from stratalog.layout.message import HEAD
from stratalog.layout.names import UNFINISHED_COPY
from stratalog.tools.verify import verify

LOG = Path("commitlog") / ("0" * 20)


def prints(root: Path) -> dict[str, tuple[int, str]]:
    """Modification time and digest of every file."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def damaged(small_store: Path) -> Path:
    """The sixth of twenty records has a turned bit."""
    with stratalog.open(small_store, mode="r", **SETTINGS) as store:
        at = sorted(m.commit_log_offset for q in (0, 1) for m in store.queue("orders", q).read())[5]
    data = bytearray((small_store / LOG).read_bytes())
    data[at + HEAD.size] ^= 1
    (small_store / LOG).write_bytes(data)
    return small_store


@pytest.mark.parametrize(
    "arguments", [("inspect",), ("dump",), ("verify",), ("repair",), ("rebuild",)], ids=lambda arguments: arguments[0]
)
@pytest.mark.parametrize("abort", [False, True], ids=["closed", "unclean"])
def test_looking_touches_no_byte(arguments: tuple[str, ...], abort: bool, damaged: Path, call: Call) -> None:
    if abort:
        (damaged / "abort").write_text("1")
    before = prints(damaged)
    assert call(arguments[0], damaged, *arguments[1:]).exit_code in (0, 1)
    assert prints(damaged) == before


@pytest.mark.parametrize("command", ["inspect", "dump", "verify"])
def test_looking_works_beside_a_writer(command: str, small_store: Path, call: Call) -> None:
    with stratalog.open(small_store, **SETTINGS) as store:
        store.put("orders", b"one more")
        store.flush()
        store.dispatch()
        assert call(command, small_store).exit_code == 0


def test_verify_has_an_exit_code_for_what_it_cannot_check(tmp_path: Path, damaged: Path, call: Call) -> None:
    assert call("verify", damaged).exit_code == 1
    result = call("verify", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "check the path" in result.stderr


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_plan_as_json_has_what_was_found(is_clean: bool, damaged: Path, call: Call) -> None:
    if not is_clean:
        (damaged / "abort").write_text("1")
    shown, report = json.loads(call("repair", damaged, "--json").stdout), verify(damaged)
    assert shown["closedProperly"] is is_clean
    assert shown["found"] == [asdict(problem) for problem in report.problems]
    assert (len(shown["found"]), shown["notes"]) == (shown["problems"], report.notes)


def test_repair_shows_its_plan_and_waits(damaged: Path, call: Call) -> None:
    before = prints(damaged)
    result = call("repair", damaged)
    assert result.exit_code == 1
    for part in (
        "19 records, 19 messages in queues",
        "14 records after damage",
        "1 message: orders/1 at 2",
        "nothing was changed",
    ):
        assert part in result.stdout
    assert prints(damaged) == before
    plan = json.loads(call("repair", damaged, "--json").stdout)
    assert [action["kind"] for action in plan["actions"]] == ["cover", "rebuild"]
    assert plan["lost"] == [{"topic": "orders", "queueId": 1, "queueOffset": 2}]
    assert call("repair", damaged, "--yes").exit_code == 2


def test_repair_mends_a_copy_and_leaves_the_store(damaged: Path, tmp_path: Path, call: Call) -> None:
    before = prints(damaged)
    result = call("repair", damaged, "--to", tmp_path / "mended", "--yes")
    assert result.exit_code == 0, result.output
    assert prints(damaged) == before
    assert call("verify", tmp_path / "mended").exit_code == 0
    assert (tmp_path / "mended" / "stratalog-quarantine").is_dir()
    told = sentence(call("repair", damaged, "--to", tmp_path / "mended", "--yes", "--json"), exit_code=2)
    assert "not empty" in told


def test_repair_mends_in_place_once(damaged: Path, call: Call) -> None:
    assert call("repair", damaged, "--in-place", "--yes").exit_code == 0
    assert call("verify", damaged).exit_code == 0
    result = call("repair", damaged)
    assert result.exit_code == 0
    assert "nothing to repair" in result.stdout


def test_a_store_that_is_open_elsewhere_is_not_repaired(damaged: Path, call: Call) -> None:
    program = (
        "import os, sys, time, stratalog\nfrom pathlib import Path\n"
        "from stratalog.store.disk import Disk\nroot = Path(sys.argv[1])\n"
        "release = Disk().lock(root / 'lock')\n(root / 'abort').write_text(str(os.getpid()))\n"
        "print('held', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(damaged)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout
            holder.stdout.readline()
            assert f"is open in process {holder.pid}" in call("repair", damaged, "--in-place", "--yes").stderr
            assert f"open in process {holder.pid}" in call("inspect", damaged).stdout
        finally:
            holder.kill()


def test_rebuild_needs_a_yes(small_store: Path, call: Call) -> None:
    before = prints(small_store)
    assert "add --yes" in call("rebuild", small_store).stdout
    assert prints(small_store) == before
    told = call("rebuild", small_store, "--yes").stdout
    assert "20 units in 2 queues" in told
    assert "without a directory" not in told
    shutil.rmtree(small_store / "consumequeue" / "orders" / "0")
    assert "1 queue without a directory" in call("rebuild", small_store, "--yes").stdout
    assert call("verify", small_store).exit_code == 0


def test_rebuild_tells_of_messages_before_the_log_as_verify_did(tmp_path: Path, call: Call) -> None:
    given = PLAIN.made(tmp_path / "s", count=200) and [f"--set={name}={size}" for name, size in SIZES.items()]
    min((tmp_path / "s" / "commitlog").iterdir()).unlink()
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    count = json.loads(call("verify", tmp_path / "s", *given, "--json").stdout)["gone_count"]
    told = f"{count} messages in front of the log's first file: removed by retention, or lost with a file"
    assert told in call("verify", tmp_path / "s", *given).stdout
    assert told in call("rebuild", tmp_path / "s", *given, "--yes").stdout
    shown = json.loads(call("rebuild", tmp_path / "copy", *given, "--yes", "--json").stdout)
    assert (shown["done"], shown["beforeTheLog"]) == (True, count)


def test_rebuild_tells_that_a_crash_took_messages_that_queues_knew(small_store: Path, call: Call) -> None:
    with stratalog.open(small_store, mode="r") as store:
        newest = max(message.commit_log_offset for key in store.queues() for message in store.queue(*key).read())
    for name in ("checkpoint", "queues.snapshot"):
        (small_store / name).unlink()
    (small_store / "abort").touch()
    path = small_store / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:newest].ljust(path.stat().st_size, b"\0"))
    told = call("rebuild", small_store, "--yes").stdout
    assert "queues that knew messages after the log's end, as after a crash: 1" in told
    assert "given again" not in call("rebuild", small_store, "--yes").stdout


@pytest.mark.parametrize("arguments", [("rebuild", "--yes"), ("put", "orders", "body")], ids=lambda given: given[0])
def test_long_openings_tell_how_far_they_are(
    arguments: tuple[str, ...], small_store: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_PAUSE_S", 0.0)
    shutil.rmtree(small_store / "consumequeue")
    told = call(arguments[0], small_store, *arguments[1:]).stderr
    for step in ("checking the log", "building queues and index"):
        assert re.search(rf"^{step}: [\d.]+ kB of [\d.]+ kB \(\d+ %\), .*/s, 0:00 left$", told, re.MULTILINE), told


def test_more_files_than_may_be_open(tmp_path: Path, call: Call) -> None:
    with stratalog.open(tmp_path / "store", **SETTINGS) as store:
        for number in range(110):
            store.put(f"topic{number}", b"x" * 600, keys=["k"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 80, hard))
    try:
        for command in (["inspect"], ["verify"], ["dump"], ["rebuild", "--yes"], ["repair"]):
            result = call(command[0], tmp_path / "store", *command[1:])
            assert result.exit_code == 0, result.output
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "count"),
    [("flip-body-clean", 89), ("size-field-abort", 90), ("magic-field-abort", 90), ("torn-cut-clean", 89)],
)
def test_stores_that_rocketmq_wrote_and_lost_messages_of_are_mended(
    name: str, count: int, tmp_path: Path, call: Call
) -> None:
    case = golden_case(f"local/{name}")
    root = case.unpack_store(tmp_path)
    conf = case.about["conf"]
    sizes = [f"--set=max_hash_slot_num={conf['maxHashSlotNum']}", f"--set=max_index_num={conf['maxIndexNum']}"]
    assert call("repair", root, "--in-place", "--yes", *sizes).exit_code == 0
    with stratalog.open(root, mode="r") as store:
        messages = [message for key in store.queues() for message in store.queue(*key).read()]
    assert sum("STRATALOG_LOST" not in message.properties for message in messages) == count


def test_the_ranges_of_lost_messages_are_named_without_gaps() -> None:
    places = [("b", 0, 5, 8), *(("t", 0, number, number + 1) for number in (1, 2, 3, 7))]
    assert offsets_text(places) == "b/0 at 5 to 7; t/0 at 1 to 3, 7"


@pytest.mark.parametrize("copy", [None, "{broken", "{}"])
def test_the_next_step_of_an_unreadable_configuration_helps(copy: str | None, small_store: Path, call: Call) -> None:
    (small_store / "config").mkdir(exist_ok=True)
    (small_store / "config" / "topics.json").write_text("{broken")
    if copy:
        (small_store / "config" / "topics.json.bak").write_text(copy)
    assert "`stratalog repair" in call("verify", small_store).stdout
    assert call("repair", small_store, "--in-place", "--yes").exit_code == 0
    assert call("verify", small_store).exit_code == 0


def test_a_target_of_a_repair_is_looked_at_before_the_plan_is_shown(
    damaged: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is in the store" in call("repair", damaged, "--to", damaged / "copy").stderr
    assert "contains the store" in call("repair", damaged, "--to", damaged.parent).stderr
    real = os.mkdir

    def refused(path: Path, *given: int, **named: int) -> None:
        if str(path).startswith(str(tmp_path / "closed")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        real(path, *given, **named)

    monkeypatch.setattr(os, "mkdir", refused)
    told = call("repair", damaged, "--to", tmp_path / "closed", "--yes").stderr
    assert "Nothing was changed" in told
    assert "Remove" not in told


@pytest.mark.parametrize(
    "arguments",
    [("repair",), ("repair", "--to", "mended", "--yes"), ("repair", "--in-place", "--yes"), ("rebuild",),
     ("rebuild", "--yes"), ("rebuild", "--index", "--json")],
)  # fmt: skip
def test_no_repair_and_no_rebuild_is_planned_for_a_store_that_is_open(
    arguments: tuple[str, ...], damaged: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with stratalog.open(damaged, **SETTINGS):
        before = prints(damaged)
        refused = call(arguments[0], damaged, *arguments[1:])
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert re.search(rf"is open in process {os.getpid()} .*{arguments[0]} the copy", refused.stderr)
        assert prints(damaged) == before
    assert not Path("mended").exists()
    assert call("repair", damaged).exit_code == 1


def test_rebuild_names_the_log_file_that_cannot_be_read(
    small_store: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: Path, *given: int, **named: int) -> int:
        if str(path).endswith(f"commitlog/{LOG.name}"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", refused)
    told = call("rebuild", small_store, "--yes").stderr
    assert str(small_store / LOG) in told
    assert "stratalog-rebuild.tmp" not in told


def test_verify_tells_of_messages_in_front_of_the_log(small_store: Path, call: Call) -> None:
    assert "before it" not in call("verify", small_store).stdout
    with stratalog.open(small_store, **SETTINGS) as store:
        for _ in range(100):
            store.put("orders", b"x" * 1000)
    min((small_store / "commitlog").iterdir()).unlink()
    (small_store / "queues.snapshot").unlink()  # as a later opening would leave it
    done = call("verify", small_store)
    assert "in front of the log's first file: removed by retention, or lost with a file" in done.stdout
    assert json.loads(call("verify", small_store, "--json").stdout)["gone_count"] > 0


def test_an_unfinished_copy_is_named_by_every_command(small_store: Path, tmp_path: Path, call: Call) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_store, copy)
    (copy / UNFINISHED_COPY).write_text(str(small_store))
    told = f"{copy} is an unfinished copy: remove it and run `stratalog repair {small_store} --to {copy} --yes` again"
    for refused in ("put", "get", "verify", "repair", "rebuild"):
        result = call(refused, copy, *{"put": ["orders", "body"], "get": ["orders"]}.get(refused, []))
        assert result.exit_code
        assert told in result.stderr
    for shown in (copy, copy / "commitlog", copy / "commitlog" / f"{0:020d}"):
        result = call("dump", shown, "--limit", "1")
        assert result.exit_code == 0
        assert result.stderr == f"note: {told}\n"
    assert told in " ".join(call("inspect", copy).stdout.split())
    assert told in json.loads(call("inspect", copy, "--json").stdout)["notes"]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_plan_of_a_rebuild_names_what_may_move_to_another_queue(kind: Kind, call: Call) -> None:
    """The only message of a queue, of which the directory was renamed. Whatever the run moves is named."""
    with scratch_folder() as folder:
        fill(folder / "base", kind, 1, 0)
        assert json.loads(call("rebuild", folder / "base", "--json").stdout)["mayMove"] == []
        moved_count = 0
        for source, target in moved(folder / "base", kind):
            shutil.copytree(folder / "base", root := folder / "store")
            (root / source.relative_to(folder / "base")).rename(root / target.relative_to(folder / "base"))
            before = prints(root)
            plan, shown = call("rebuild", root, "--json"), call("rebuild", root)
            named = json.loads(plan.stdout)["mayMove"]
            assert [line.partition("may move  ")[2] for line in shown.stdout.splitlines() if "may move" in line] == (
                ["; ".join(named)] if named else []
            )
            assert "refuses if the new queues would have fewer messages" in shown.stdout
            assert json.loads(call("rebuild", root, "--index", "--json").stdout)["mayMove"] == []
            assert prints(root) == before
            done = json.loads(call("rebuild", root, "--yes", "--json").stdout)
            for text in done["moved"]:
                assert any(text.startswith(place) for place in named), (text, named)
            moved_count += len(done["moved"])
            shutil.rmtree(root)
        assert moved_count


def test_a_place_in_a_light_queue_that_is_lost_is_no_lost_message(tmp_path: Path, call: Call) -> None:
    """Nor is it missing for no reason afterwards: its unit says that it was lost."""
    root, mended = tmp_path / "store", tmp_path / "mended"
    content = LIGHT_KIND.made(root, count=8)
    offset = content.queues["%LMQ%b", 0][1].commit_log_offset
    data = bytearray((root / LOG).read_bytes())
    at = data.index(b"INNER_MULTI_DISPATCH", offset)
    data[at : at + 20] = b"\xff" * 20
    (root / LOG).write_bytes(data)
    shown = json.loads(call("repair", root, "--json").stdout)
    assert (shown["lost"], shown["lostMessages"]) == ([], 0)
    places = [(one["topic"], one["queueOffset"]) for one in shown["lostPlaces"]]
    assert ("%LMQ%b", 1) in places
    assert {topic for topic, _ in places} <= {"%LMQ%a", "%LMQ%b"}
    text = call("repair", root, "--to", mended, "--yes").stdout
    assert "lost messages" not in text.replace("lost places", "")
    assert f"lost places  {len(places)} place" in text
    for command in ("repair", "verify"):
        text = call(command, mended).stdout
        assert "no damage explains it" not in text
        assert "without a record, lost to damage earlier: %LMQ%" in text
    shown = json.loads(call("repair", mended, "--json").stdout)
    assert shown["lostBefore"] == shown["missing"] != []


def test_a_record_whose_properties_are_damaged_is_named_by_verify_and_repair(tmp_path: Path, call: Call) -> None:
    content = PLAIN.made(tmp_path, count=8)
    offset = content.queues["topic", 1][2].commit_log_offset
    data = bytearray((tmp_path / LOG).read_bytes())
    data[offset - 10 : offset + 20] = b"\xff" * 30
    (tmp_path / LOG).write_bytes(data)
    for command, name in (("verify", "damaged_properties"), ("repair", "damagedProperties")):
        assert "the properties of 1 record that is kept" in call(command, tmp_path).stdout
        assert "may be lost or changed: topic/0 at 2" in call(command, tmp_path).stdout
        shown = json.loads(call(command, tmp_path, "--json").stdout)
        assert shown[name] == [{"topic": "topic", "queueId": 0, "begin": 2, "end": 3}]
