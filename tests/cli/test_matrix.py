"""Every command in every situation: an exit code that is documented, no traceback, and JSON that is JSON."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from cli.calls import SETTINGS, Call, sentence

STORE = "STORE"
COMMANDS: dict[str, list[str]] = {
    "put": [STORE, "orders", "body", *(f"--set={name}={value}" for name, value in SETTINGS.items())],
    "get": [STORE, "orders", "-n", "100"],
    "query": [STORE, "orders", "all"],
    "tail": [STORE, "orders", "--count", "4"],
    "inspect": [STORE, "--files"],
    "dump": [STORE],
    "verify": [STORE],
    "repair": [STORE],
    "rebuild": [STORE],
    "rebuild --yes": [STORE, "--yes"],
}
LINES = ("get", "query", "tail", "dump")
"""With --json they print one object a line, the others one document."""
INTERRUPTED = 130
_DAC_OVERRIDE, _DAC_READ_SEARCH, _CAPABILITY_VERSION = 1, 2, 0x20080522


def arguments(name: str, store: Path, *more: str) -> list[str]:
    return [name.split()[0], *(str(store) if word == STORE else word for word in COMMANDS[name]), *more]


@contextlib.contextmanager
def without_the_right_to_read_all() -> Iterator[None]:
    """Root passes over file modes; this thread does not meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert not libc.capget(header, sets)
    effective = sets[0]
    sets[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    assert not libc.capset(header, sets)
    yield
    sets[0] = effective
    assert not libc.capset(header, sets)


@pytest.mark.parametrize("flag", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_path_is_named_in_one_sentence(name: str, flag: tuple[str, ...], tmp_path: Path, call: Call) -> None:
    (tmp_path / "file").write_text("no store")
    (tmp_path / "empty").mkdir()
    unreadable = tmp_path / "unreadable"
    for path in (unreadable, unreadable / "commitlog", unreadable / "consumequeue"):
        path.mkdir()
    wrong = [tmp_path / "file", tmp_path / "file" / "store"]
    wrong += [tmp_path / "missing", tmp_path / "empty"] if name != "put" else []
    for path in wrong:
        result = call(*arguments(name, path, *flag))
        assert result.exit_code in (1, 2), path
        assert str(path) in sentence(result, exit_code=result.exit_code)
    assert not (tmp_path / "missing").exists()
    unreadable.chmod(0)
    try:
        with without_the_right_to_read_all():
            result = call(*arguments(name, unreadable, *flag))
    finally:
        unreadable.chmod(0o755)
    assert result.exit_code in (1, 2)
    assert "ermission" in sentence(result, exit_code=result.exit_code)


@pytest.mark.parametrize("width", ["5", "200"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_right_call_succeeds_and_its_json_is_json(
    name: str, width: str, small_store: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    with stratalog.open(small_store, **SETTINGS) as store:
        store.put("orders", b"\xff\x1b[31m\n", keys=["all"])
    assert call(*arguments(name, small_store)).exit_code == 0
    result = call(*arguments(name, small_store, "--json"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert len(lines) == 1 or name in LINES


@pytest.mark.one_in(2)
@pytest.mark.parametrize("output", ["closed pipe", "closed", "full"])
@pytest.mark.parametrize("command", [["get", STORE, "orders"], ["dump", STORE, "--json"]], ids=["get", "dump"])
def test_output_that_nobody_takes_is_no_error_and_a_full_disk_is_one(
    command: list[str], output: str, small_store: Path
) -> None:
    line = [sys.executable, "-m", "stratalog.cli.main", *(str(small_store) if it == STORE else it for it in command)]
    writing = os.open("/dev/full", os.O_WRONLY)
    if output == "closed pipe":
        os.close(writing)
        reading, writing = os.pipe()
        os.close(reading)
    close = (lambda: os.close(1)) if output == "closed" else None
    done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=close)
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == (4 if output == "full" else 0), done.stderr
    assert ("No space left on device" in done.stderr) == (output == "full")


@pytest.mark.parametrize("command", ["sql", "offload"])
def test_without_spark_its_commands_say_what_to_install(command: str, small_store: Path, tmp_path: Path) -> None:
    given = ["SELECT 1", "--store", small_store] if command == "sql" else [small_store, tmp_path / "tier"]
    hidden = "import sys; sys.modules['pyspark'] = None; from stratalog.cli.main import main; main()"
    line = [sys.executable, "-c", hidden, command, *map(str, given)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "pip install 'stratalog[spark]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["tail", "put"])
def test_ctrl_c_ends_a_command_with_one_sentence(command: str, small_store: Path) -> None:
    line = [sys.executable, "-m", "stratalog.cli.main", command, str(small_store), "orders"]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdin
        assert child.stdout
        if command == "tail":
            child.stdout.readline()
        else:
            while not (small_store / "abort").exists():  # it has the store open
                assert child.poll() is None
            child.stdin.write("a line\n")
            child.stdin.flush()
        os.kill(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == INTERRUPTED
    stopped = "stratalog: stopped"
    stored = f"{stopped}. The message is stored, in orders/0 from offset 10 on: go on with line 2"
    assert errors.strip() in ([stopped, stored] if command == "put" else [stopped])


STOPPED = [
    ("verify", "verify._verify", "Nothing was changed"),
    ("inspect", "map._map_store", "Nothing was changed"),
    ("dump", "dump._items", "Nothing was changed"),
    ("repair", "repair_plan._plan", "Nothing was changed"),
    ("repair --in-place --yes", "repair._mend", "Run the same command again: it goes on"),
    ("repair --in-place --yes", "repair.verify", "The repair is done: `stratalog verify STORE` checks it"),
    ("repair --to COPY --yes", "repair.copy_tree", "Remove COPY, then run it again"),
    ("repair --to COPY --yes", "repair._mend", "Remove COPY, then run it again"),
    ("repair --to COPY --yes", "repair.verify", "The repair is done: `stratalog verify COPY` checks it"),
    ("rebuild --yes", "rebuild._build", "Run the same command again"),
]


@pytest.mark.parametrize(("line", "function", "told"), STOPPED)
def test_ctrl_c_says_how_the_store_is_then(
    line: str, function: str, told: str, small_store: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    copy = tmp_path / "copy"
    command, *options = line.replace("COPY", str(copy)).split()
    told = told.replace("COPY", str(copy)).replace("STORE", str(small_store))
    if "--yes" in options:
        (small_store / "abort").touch()
    monkeypatch.setattr(f"stratalog.tools.{function}", interrupted)
    result = call(command, small_store, *options)
    assert result.exit_code == INTERRUPTED
    assert result.stderr.splitlines()[-1] == f"stratalog: stopped. {told}"
