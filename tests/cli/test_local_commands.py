"""The commands on a local store: what they print, as tables and as JSON, and their exit codes."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import Result

import stratalog
from cli.calls import SETTINGS, Call, sentence
from store.kinds import KINDS, SIZES, TREES, Kind, trees
from stratalog import __version__
from stratalog.cli.follow import follow
from stratalog.cli.main import app
from stratalog.kernels import aside, jit, warm
from stratalog.layout.message import HEAD
from stratalog.layout.names import COMMIT_LOG, INDEX
from stratalog.layout.names import SIZES as NOTED

COMMANDS = (
    "demo", "put", "get", "query", "tail", "inspect", "dump", "verify", "repair", "rebuild", "offload", "sql",
)  # fmt: skip
SMALL = [f"--set={name}={value}" for name, value in SETTINGS.items()]


def lines_of(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, call: Call) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"stratalog {command} " in result.stdout.partition("Examples:")[2]


def test_help_waits_for_nothing_heavy() -> None:
    program = (
        "import sys\nfrom stratalog.cli.main import app\ntry:\n    app(['put', '--help'])\nfinally:\n"
        "    print([name for name in ('numpy', 'numba', 'pyarrow', 'pyspark', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command(call: Call) -> None:
    shown = call("--help").stdout
    assert [line.split()[0] for line in shown.partition("Commands:")[2].splitlines() if line.startswith("  ")][
        : len(COMMANDS)
    ] == list(COMMANDS)


def test_the_version_is_printed(call: Call) -> None:
    assert call("--version").stdout == f"stratalog {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("put",),
        ("put", "store", "orders", "a", "--file", "b"),
        ("put", "store", "orders", "a", "--property", "novalue"),
        ("put", "store", "orders", "a", "--set", "novalue"),
        ("get", "store", "orders", "--offset", "1", "--time", "2"),
        ("get", "store", "orders", "--time", "yesterday"),
        ("get", "store", "orders", "--count", "0"),
        ("sql", "SELECT 1"),
        ("nonsense",),
    ],
)
def test_a_wrong_call_is_told_with_exit_code_2(arguments: tuple[str, ...], call: Call) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_one_message_goes_in_with_all_that_describes_it(tmp_path: Path, call: Call) -> None:
    result = call(
        "put", tmp_path / "new", "orders", "hällo", "--queue", 3, "--tags", "paid", "-k", "o-1", "-k", "o-2",
        "-p", "region=eu=west", *SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("put into orders/3 at offset 0, message id ")
    with stratalog.open(tmp_path / "new", mode="r", **SETTINGS) as store:
        message = next(store.queue("orders", 3).read())
    assert message.body == "hällo".encode()
    assert (message.tags, message.keys, message.properties["region"]) == ("paid", ["o-1", "o-2"], "eu=west")
    assert result.stdout.rstrip().endswith(message.message_id)


def test_lines_of_stdin_are_messages(tmp_path: Path, call: Call) -> None:
    result = call("put", tmp_path / "new", "orders", "--json", *SMALL, stdin=b"one\ntwo\r\n\xff\n")
    (shown,) = lines_of(result)
    assert (shown["count"], shown["queueOffset"], shown["lastQueueOffset"]) == (3, 0, 2)
    with stratalog.open(tmp_path / "new", mode="r", **SETTINGS) as store:
        assert [message.body for message in store.queue("orders").read()] == [b"one", b"two", b"\xff"]


def test_a_file_is_one_message_or_its_lines(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\nb\n")
    assert call("put", tmp_path / "new", "orders", "--file", file, *SMALL).exit_code == 0
    assert "put 2 messages" in call("put", tmp_path / "new", "orders", "--file", file, "--lines").stdout
    with stratalog.open(tmp_path / "new", mode="r", **SETTINGS) as store:
        assert [message.body for message in store.queue("orders").read()] == [b"a\nb\n", b"a", b"b"]


def test_no_line_is_no_message(small_store: Path, call: Call) -> None:
    assert "nothing was put" in call("put", small_store, "orders").stdout
    assert lines_of(call("put", small_store, "orders", "--json")) == [{"topic": "orders", "queueId": 0, "count": 0}]


def test_a_queue_is_read_from_an_offset(small_store: Path, call: Call) -> None:
    result = call("get", small_store, "orders", "-q", 1, "-o", 4, "-n", 2)
    titles, _, *rows = result.stdout.splitlines()
    assert titles.split() == ["queue", "offset", "stored", "(UTC)", "tags", "keys", "bytes", "body"]
    assert [row.split()[:2] for row in rows] == [["1", "4"], ["1", "5"]]
    assert [row.split()[-1] for row in rows] == ["1-4", "1-5"]
    assert result.stderr.startswith("2 messages in ")
    assert "orders/1 holds offsets 0 to 9" in result.stderr


def test_get_prints_json_lines_and_bytes_that_are_no_text_as_base64(small_store: Path, call: Call) -> None:
    with stratalog.open(small_store, **SETTINGS) as store:
        store.put("orders", b"\xff\x00", queue_id=7)
    first, *_ = lines_of(call("get", small_store, "orders", "--json"))
    assert (first["body"], first["keys"], first["tags"]) == ("body 0-0", ["k0-0", "all"], "a")
    assert first["properties"] == {"KEYS": "k0-0 all", "TAGS": "a", "region": "eu"}
    (last,) = lines_of(call("get", small_store, "orders", "-q", 7, "--json"))
    assert last["bodyBase64"] == "/wA="
    assert "body" not in last


def test_a_queue_is_read_from_a_time(small_store: Path, call: Call) -> None:
    with stratalog.open(small_store, mode="r", **SETTINGS) as store:
        stored = [message.store_timestamp for message in store.queue("orders").read()]
    middle = stored[5]
    shown = lines_of(call("get", small_store, "orders", "--time", middle, "--json"))
    assert shown[0]["queueOffset"] == stored.index(middle)
    assert lines_of(call("get", small_store, "orders", "--time", "2100-01-01", "--json")) == []


def test_what_a_terminal_would_obey_is_not_printed(small_store: Path, call: Call) -> None:
    evil = "a\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \u202e\rback\x08\nline\x00"
    with stratalog.open(small_store, **SETTINGS) as store:
        store.put("orders", evil.encode(), queue_id=5, tags="t\x1b[1m", keys="k\x1b[2J")
    result = call("get", small_store, "orders", "-q", 5)
    assert not set("\x1b\x07\x9b\u202e\r\x08\x00") & set(result.stdout)
    assert "ared" in result.stdout
    assert len(result.stdout.splitlines()) == 3
    shown = call("get", small_store, "orders", "-q", 5, "--json").stdout
    assert shown.isascii()
    assert "\x1b" not in shown
    assert json.loads(shown)["body"] == evil


def test_messages_are_found_by_key(small_store: Path, call: Call) -> None:
    result = call("query", small_store, "orders", "k1-3")
    assert result.stdout.splitlines()[-1].split()[-1] == "1-3"
    assert result.stderr.startswith("1 message in ")
    assert len(lines_of(call("query", small_store, "orders", "all", "--json"))) == 20
    assert len(lines_of(call("query", small_store, "orders", "all", "--limit", 5, "--json"))) == 5
    assert lines_of(call("query", small_store, "orders", "all", "--end", "2000-01-01", "--json")) == []
    for form in ((), ("--json",)):
        cut = call("query", small_store, "orders", "all", "--limit", 5, *form)
        assert "there are older messages with this key: raise --limit, which is 5" in cut.stderr
        assert "older" not in call("query", small_store, "orders", "all", "--limit", 20, *form).stderr
    nothing = call("query", small_store, "orders", "nobody")
    assert nothing.exit_code == 0
    assert nothing.stderr.startswith("0 messages in ")


def test_inspect_maps_the_store(small_store: Path, call: Call) -> None:
    (shown,) = lines_of(call("inspect", small_store, "--json"))
    assert shown["kind"] == "store"
    assert shown["state"] == "closed properly"
    queues = shown["queues"]
    assert isinstance(queues, list)
    assert [(queue["topic"], queue["queueId"], queue["messages"]) for queue in queues] == [
        ("orders", 0, 10),
        ("orders", 1, 10),
    ]
    assert shown["index"] == {"items": 60}
    text = call("inspect", small_store, "--files").stdout
    assert "20 in 2 queues" in text
    assert "commitlog/00000000000000000000" in text


def test_inspect_says_that_a_cut_topics_file_was_read_from_its_copy(small_store: Path, call: Call) -> None:
    (small_store / "config").mkdir()
    (small_store / "config" / "topics.json").write_text('{"topicConfig')
    (small_store / "config" / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    (shown,) = lines_of(call("inspect", small_store, "--json"))
    assert "topics.json.bak was read" in str(shown["notes"])
    assert "topics.json.bak was read" in call("inspect", small_store).stdout.replace("\n", "")


def test_verify_finds_nothing_in_a_healthy_store(small_store: Path, call: Call) -> None:
    result = call("verify", small_store)
    assert result.exit_code == 0
    assert "20 records" in result.stdout
    assert "no problem" in result.stdout
    (shown,) = lines_of(call("verify", small_store, "--json"))
    assert (shown["ok"], shown["problems"], shown["unit_count"]) == (True, [], 20)


def test_verify_names_the_damage_and_ends_with_exit_code_1(small_store: Path, call: Call) -> None:
    file = small_store / "commitlog" / ("0" * 20)
    data = bytearray(file.read_bytes())
    data[HEAD.size] ^= 1
    file.write_bytes(data)
    result = call("verify", small_store)
    assert result.exit_code == 1
    assert f"{file} at byte 0" in result.stdout
    assert "CRC" in result.stdout
    shown = json.loads(call("verify", small_store, "--json").stdout)
    assert not shown["ok"]
    assert shown["problems"][0]["path"] == str(file)
    assert call("verify", small_store, "--limit", 0).stdout.splitlines()[-1].startswith("… and 1 more")


def test_tail_shows_the_last_messages_and_those_that_come(tmp_path: Path, call: Call) -> None:
    with stratalog.open(tmp_path / "s", **SETTINGS) as store:
        for number in range(5):
            store.put("orders", b"old %d" % number)
        store.dispatch()

        def write() -> None:
            for number in range(3):
                store.put("orders", b"new %d" % number, queue_id=number)
            store.dispatch()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            result = call("tail", tmp_path / "s", "orders", "--last", 10, "--count", 8, "--json")
        finally:
            writer.join()
    assert sorted(str(line["body"]) for line in lines_of(result)) == [
        *(f"new {number}" for number in range(3)),
        *(f"old {number}" for number in range(5)),
    ]


def test_tail_says_that_it_waits_for_a_queue_that_is_not_there(tmp_path: Path, call: Call) -> None:
    with stratalog.open(tmp_path / "s", **SETTINGS) as store:
        store.put("orders", b"old")
        store.dispatch()
        writer = threading.Timer(0.5, lambda: (store.put("orders", b"new", queue_id=7), store.dispatch()))
        writer.start()
        try:
            result = call("tail", tmp_path / "s", "orders", "--queue", 7, "--count", 1)
        finally:
            writer.join()
    assert "there is no queue orders/7 yet; waiting for its first message" in result.stderr
    assert "new" in result.stdout


def test_settings_come_from_a_broker_conf(tmp_path: Path, call: Call) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\nmaxHashSlotNum=77\nmaxIndexNum=300\nbrokerName=b\n")
    assert call("put", tmp_path / "s", "orders", "a", "--key", "k", "--conf", conf).exit_code == 0
    assert (tmp_path / "s" / "commitlog" / ("0" * 20)).stat().st_size == 65536
    assert call("verify", tmp_path / "s", "--conf", conf).exit_code == 0


def test_following_sees_new_messages_and_new_queues(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "s", **SETTINGS) as store:
        for number in range(5):
            store.put("orders", b"old %d" % number)
        store.put("others", b"not asked for")
        followed = follow(tmp_path / "s", "orders", None, last=2)
        assert [next(followed).body for _ in range(2)] == [b"old 3", b"old 4"]
        store.put("orders", b"new in an old queue")
        store.dispatch()
        assert next(followed).body == b"new in an old queue"
        store.put("orders", b"in a new queue", queue_id=4)
        store.put("others", b"not asked for")
        store.dispatch()
        assert next(followed).body == b"in a new queue"
        rolled = [b"%d " % number + bytes(2000) for number in range(100)]
        for body in rolled:
            store.put("orders", body)
        store.dispatch()
        assert [next(followed).body for _ in rolled] == rolled
        assert len(store.log.files) > 1


def test_a_machine_without_compiled_kernels_is_told_why_it_waits(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(warm, "compile_all", lambda: compiled.append(True))
    assert "compiling" not in call("get", small_store, "orders").stderr
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", str(tmp_path / "cold"))
    result = call("get", small_store, "orders")
    assert result.stderr.startswith("compiling kernels (once)\n")
    assert compiled == [True]


def test_putting_one_message_waits_for_no_compiler(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(warm, "compile_all", lambda: compiled.append(True))
    monkeypatch.setattr(aside, "_start", lambda: None)
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", str(tmp_path / "cold"))
    result = call("put", small_store, "orders", "a message")
    assert result.exit_code == 0, result.output
    assert "compiling" not in result.stderr
    assert not compiled


_COMMANDS = typer.main.get_group(app).commands
SIZED = {
    "put": ["orders", "x"], "get": ["orders"], "query": ["orders", "all"], "tail": ["orders", "--count", 1],
    "verify": [], "repair": [], "repair --yes": ["--in-place", "--yes"], "rebuild": [], "rebuild --yes": ["--yes"],
    "inspect": [],
}  # fmt: skip


@pytest.mark.one_in(72)
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "one file cut"])
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("size", [7000, 10_000, 40_000, 1 << 30])
@pytest.mark.parametrize("name", SIZED)
def test_a_wrong_size_of_log_files_is_a_wrong_call_and_the_right_one_is_named(
    name: str, size: int, is_noted: bool, is_damaged: bool, tmp_path: Path, call: Call
) -> None:
    with stratalog.open(tmp_path, **SETTINGS | {"mapped_file_size_commit_log": 20_000}) as store:
        for number in range(500):
            store.put("orders", b"%d" % number, keys=["all"])
    if not is_noted:
        (tmp_path / NOTED).unlink()
    if is_damaged:
        os.truncate(max((tmp_path / COMMIT_LOG).iterdir()), size if size < 20_000 else 12_000)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    conf = tmp_path.with_suffix(".conf")
    conf.write_text(f"mappedFileSizeCommitLog={size}\n")
    for option in (["--set", f"mapped_file_size_commit_log={size}"], ["--conf", conf]):
        if name in ("get", "query", "tail", "inspect") and option[0] == "--conf":
            continue
        said = sentence(call(name.split()[0], tmp_path, *SIZED[name], *option), exit_code=2)
        assert f"{tmp_path / COMMIT_LOG} have 20,000 bytes, not {size:,}: give that as mapped_file_size_commit" in said
    assert before == {path: path.read_bytes() for path in before}
    if not is_damaged:
        option = ["--set", "mapped_file_size_commit_log=20000"]
        assert call(name.split()[0], tmp_path, *SIZED[name], *option).exit_code == 0


@pytest.mark.parametrize("name", SIZED)
def test_the_size_of_an_only_log_file_is_no_smaller_one(name: str, tmp_path: Path, call: Call) -> None:
    """Nothing else tells the size, but a file is cut rather than extended."""
    with stratalog.open(tmp_path, **SETTINGS) as store:
        store.put("orders", b"x", keys=["all"])
    (tmp_path / NOTED).unlink()
    option = ["--set", "mapped_file_size_commit_log=20000"]
    said = sentence(call(name.split()[0], tmp_path, *SIZED[name], *option), exit_code=2)
    assert "have 65,536 bytes, not 20,000: give that as mapped_file_size_commit_log" in said


_TREE_OF = dict(zip(SIZES, (COMMIT_LOG, *TREES, INDEX, INDEX), strict=True))


@pytest.mark.one_in(144)
@pytest.mark.parametrize("size", ["larger", "smaller"])
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("count", [300, 3], ids=["many files", "few files"])
@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_wrong_size_of_any_files_is_a_wrong_call(
    kind: Kind, name: str, count: int, is_noted: bool, size: str, tmp_path: Path, call: Call
) -> None:
    """Where names and the note do not tell, files may be cut ones of a larger size."""
    kind.made(tmp_path, count=count)
    if not is_noted:
        (tmp_path / NOTED).unlink()
    topic, arguments = kind.queues[0][0], SIZED[name]
    arguments = [topic if one == "orders" else one for one in arguments]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    tried = 0
    for setting, right in SIZES.items():
        tree = tmp_path / _TREE_OF[setting]
        has_files = any(path.is_file() for path in tree.rglob("*"))
        may_be_cut = size == "larger" and not is_noted and (count == 3 or tree.name == INDEX)
        if not has_files or (may_be_cut and setting != "max_hash_slot_num"):
            continue
        wrong, tried = right * 2 if size == "larger" else right - 46, tried + 1
        said = sentence(call(name.split()[0], tmp_path, *arguments, "--set", f"{setting}={wrong}"), exit_code=2)
        has = next(path for path in tree.rglob("*") if path.is_file()).stat().st_size
        assert f"the files of {tree} have {has:,} bytes, not " in said
        assert f": give that as {setting}, or leave it out" in said or f"{setting}={right}" in said
        assert before == {path: path.read_bytes() for path in before}
    assert tried >= 4 or not is_noted
    given = [f"--set={setting}={right}" for setting, right in SIZES.items()]
    if name not in ("put", "tail") or kind.name in ("plain", "extended", "batch"):
        assert call(name.split()[0], tmp_path, *arguments, *given).exit_code == 0


@pytest.mark.one_in(36)
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("verb", ["rebuild", "repair"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_right_sizes_are_taken_whatever_is_left_of_the_files(
    kind: Kind, verb: str, is_noted: bool, tmp_path: Path, call: Call
) -> None:
    """As a broker's configuration has them."""
    kind.made(tmp_path / "made", count=100)
    given = [f"--set={setting}={right}" for setting, right in {**SIZES, **kind.settings}.items()]
    yes = ["--yes"] if verb == "rebuild" else ["--in-place", "--yes"]
    for fault in ("cut", "one is cut", "lost", "all are lost"):
        root = tmp_path / fault
        shutil.copytree(tmp_path / "made", root)
        if not is_noted:
            (root / NOTED).unlink()
        for tree in (*TREES, INDEX):
            files = sorted(path for path in (root / tree).rglob("*") if path.is_file())
            for path in files if fault in ("cut", "all are lost") else files[:1]:
                path.unlink() if "lost" in fault else os.truncate(path, path.stat().st_size // 2)
        result = call(verb, root, *yes, *given)
        assert result.exit_code == 0, (fault, result.output)
        assert call("verify", root, *given).exit_code == 0
        assert trees(root) == trees(tmp_path / "made")


@pytest.mark.parametrize("command", list(_COMMANDS))
def test_no_path_of_any_command_may_be_empty(
    command: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an unset variable of the shell: it is not the current directory."""
    monkeypatch.chdir(tmp_path)
    parameters = _COMMANDS[command].params
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    named = ("store", "place", "path", "tier", "to", "conf", "file", "folder", "flights")
    paths = [one for one in parameters if one.name in named and not getattr(one, "is_flag", False)]
    assert paths
    for one in paths:
        given = ["" if one is argument else str(tmp_path / "s") for argument in arguments]
        result = call(command, *given, *([] if one in arguments else [one.opts[0], ""]))
        assert result.exit_code == 2, (one.name, result.output)
        assert "a path that is not empty" in result.stderr or "file ''" in result.stderr
        assert not list(tmp_path.iterdir())


def test_put_takes_a_line_s_end_away_and_nothing_else(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"unix\ndos\r\ndata\r\r\n\nlast\r")
    assert call("put", tmp_path / "s", "orders", "--small", "--lines", "--file", file).exit_code == 0
    with stratalog.open(tmp_path / "s", mode="r") as store:
        assert [m.body for m in store.queue("orders").read()] == [b"unix", b"dos", b"data\r", b"", b"last\r"]


@pytest.mark.parametrize("name", ["", "missing"], ids=["directory", "missing"])
def test_put_of_what_is_no_file_is_a_wrong_call(name: str, tmp_path: Path, call: Call) -> None:
    result = call("put", tmp_path / "s", "orders", "--small", "--file", tmp_path / name)
    assert result.exit_code == 2
    assert "out of the store" not in result.stderr
    assert not (tmp_path / "s").exists()


def test_a_reversed_range_of_times_shows_both(small_store: Path, call: Call) -> None:
    said = sentence(call("query", small_store, "orders", "all", "--begin", "2027-01-01", "--end", "2026-01-01"),
                    exit_code=2)  # fmt: skip
    assert "begin 2027-01-01 00:00:00+00:00 is after end 2026-01-01 00:00:00+00:00" in said
