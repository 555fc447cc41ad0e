"""Standard input, output and error that are closed or full."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog.cli.streams import OUTPUT_LOST

COMMANDS = {
    "put": ["put", "STORE", "orders", "a body"],
    "get": ["get", "STORE", "orders"],
    "query": ["query", "STORE", "orders", "all"],
    "tail": ["tail", "STORE", "orders", "--count", "3"],
    "inspect": ["inspect", "STORE"],
    "dump": ["dump", "STORE"],
    "verify": ["verify", "STORE"],
    "repair": ["repair", "STORE", "--in-place", "--yes"],
    "rebuild": ["rebuild", "STORE", "--yes"],
}


def run(store: Path, command: list[str], **given: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "stratalog", *(str(store) if word == "STORE" else word for word in command)]
    kinds = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"stdin": subprocess.DEVNULL} | given
    return subprocess.run(line, text=True, check=False, timeout=60, **kinds)  # type: ignore[call-overload,no-any-return]


def closing(numbers: tuple[int, ...]) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


CLOSED = [(0,), (1,), (2,), (0, 1, 2)]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("numbers", CLOSED, ids=str)
def test_a_command_works_whatever_is_closed_and_no_file_of_the_store_takes_its_number(
    numbers: tuple[int, ...], name: str, small_store: Path
) -> None:
    done = run(small_store, COMMANDS[name], preexec_fn=closing(numbers))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    with stratalog.open(small_store, mode="r") as store:
        assert [message.body for message in store.queue("orders").read(10)] == [b"a body"] * (name == "put")
    assert run(small_store, COMMANDS["verify"]).returncode == 0


def test_without_standard_input_no_line_comes_in(small_store: Path) -> None:
    done = run(small_store, ["put", "STORE", "orders"], stdin=None, preexec_fn=closing((0,)))
    assert (done.returncode, done.stdout) == (0, "no line came in: nothing was put\n")
    assert "Traceback" not in done.stderr  # a line of progress may be there


@pytest.mark.one_in(36)
@pytest.mark.parametrize("name", [*COMMANDS, "--help", "--version"])
def test_a_full_standard_output_is_named_and_has_an_exit_code_of_its_own(name: str, small_store: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run(small_store, COMMANDS.get(name, [name]), stdout=full)
        assert done.returncode == OUTPUT_LOST, done.stderr
        told = done.stderr.splitlines()[-1]
        assert told.startswith("stratalog: standard output: No space left on device; ")
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        silent = run(small_store, COMMANDS.get(name, [name]), stdout=full, stderr=full)
        assert silent.returncode == OUTPUT_LOST
    if name == "put":
        assert "the message is stored, in orders/0 from offset 10 on" in told
        with stratalog.open(small_store, mode="r") as store:
            assert store.queue("orders").max_offset == 12


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [*COMMANDS, "get none"])
def test_a_full_standard_error_stops_nothing(name: str, small_store: Path) -> None:
    command = COMMANDS.get(name, ["get", "STORE", "none"])
    with open("/dev/full", "w") as full:
        assert run(small_store, command, stderr=full).returncode == (name == "get none")


@pytest.mark.parametrize("limit", ["-v 420000", "-n 8"])
@pytest.mark.parametrize("name", ["put", "verify"])
def test_a_shortage_is_one_sentence(name: str, limit: str, small_store: Path) -> None:
    words = [str(small_store) if word == "STORE" else word for word in COMMANDS[name]]
    line = ["bash", "-c", f'ulimit {limit}; exec "$0" -m stratalog "$@"', sys.executable, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    if "from stratalog" not in done.stderr:  # the interpreter itself did not start otherwise
        assert "Traceback" not in done.stderr, done.stderr
    if limit == "-n 8" and done.returncode:
        assert "ulimit -n" in done.stderr
        assert "Give this user access" not in done.stderr
    assert run(small_store, COMMANDS["verify"]).returncode == 0
