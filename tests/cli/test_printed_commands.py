"""Every command that a message tells the reader to run is complete and works as printed."""

import ast
import random
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from cli.calls import Call
from store.damage import KINDS, Original, inflict
from store.model import scratch_folder
from stratalog.cli.main import app
from stratalog.errors import command

SOURCE = Path(__file__).parents[2] / "src" / "stratalog"
NAMED = re.compile(r"`stratalog ([^`]*)`")


def printed() -> Iterator[str]:
    """Commands between backquotes in every string that is no docstring, and those that `command` makes."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "errors.py":  # makes them
            continue
        tree = ast.parse(path.read_text())
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
                yield shlex.join(a.value if isinstance(a, ast.Constant) else "place" for a in node.args)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in documents and id(node) not in inside:
                    yield from NAMED.findall(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "place" for part in node.values]
                yield from NAMED.findall("".join(map(str, parts)))


COMMANDS = sorted({*printed()})


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMANDS) > 5
    assert command("repair", "a b", "--to", Path("c")) == "`stratalog repair 'a b' --to c`"


@pytest.mark.parametrize("text", COMMANDS)
def test_a_printed_command_can_be_parsed(text: str) -> None:
    name, *arguments = shlex.split(text)
    group = typer.main.get_command(app)
    group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_a_printed_command_has_the_settings_that_were_given_and_works(small_store: Path, call: Call) -> None:
    """A log of one file that was cut: without the right size it would be mended to another one."""
    (small_store / "file-sizes.json").unlink()
    (small_store / "commitlog" / f"{0:020d}").open("r+b").truncate(32 * 1024)
    conf = small_store.with_name("broker conf")
    conf.write_text(f"mappedFileSizeCommitLog={64 * 1024}\nmaxHashSlotNum=100\nmaxIndexNum=400\n")
    (small_store / "abort").touch()
    for options in ([f"--set=mapped_file_size_commit_log={64 * 1024}", "--set=max_index_num=400"], [f"--conf={conf}"]):
        for name, given in {"verify": [], "put": ["orders", "a body"], "rebuild": ["--yes"]}.items():
            result = call(name, small_store, *given, *options)
            assert result.exit_code
            printed = NAMED.findall(result.stderr + result.stdout)
            assert printed
            for text in printed:
                words = shlex.split(text)
                assert words[-len(options) :] == options
                assert "65,536 bytes" not in call(*words).stderr
    words = shlex.split(printed[0])
    assert call(*words, "--in-place", "--yes").exit_code == 0
    assert call("verify", small_store, *options).exit_code == 0
    result = call("verify", small_store.with_name("none"))
    assert "--" not in result.stderr, "a later call has options of an earlier one"


@pytest.fixture(scope="module")
def originals() -> Iterator[dict[str, list[Original]]]:
    with scratch_folder() as folder:
        yield {
            kind: [Original(folder / f"{kind}-{seed}", kind, record_crc=False, seed=seed) for seed in (1, 2)]
            for kind in KINDS
        }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_what_verify_says_to_do_can_be_done_and_helps(
    kind: str, number: int, originals: dict[str, list[Original]], tmp_path: Path, call: Call
) -> None:
    """Of each damaged store, each command that `verify` prints."""
    original, other = originals[kind]

    def damaged() -> list[str]:
        original.copy(root)
        return inflict(original, root, random.Random(f"{kind} {number}"), other)

    root = tmp_path / "store"
    done = damaged()
    if any("of another store" in text for text in done):  # no queue tells which file is right
        return
    told = call("verify", root, "--limit", "1000")
    commands = sorted({text.replace(" --yes", "") for text in NAMED.findall(told.stdout)})
    if told.exit_code == 1 and not commands:
        assert told.stdout.count("  do  ") == 1, told.stdout
        assert "restore commitlog/ from a copy" in told.stdout or "move the file out of" in told.stdout
    for text in commands:
        damaged()
        words = [word for word in shlex.split(text) if word != "--in-place"]
        result = call(*words, *["--in-place"][words[0] != "repair" :], "--yes")
        while moves := re.findall("`(mv -n [^`]*)`", result.stderr):  # a log file under another one's name
            subprocess.run(moves[0], shell=True, check=True)
            result = call(*words, *["--in-place"][words[0] != "repair" :], "--yes")
        assert not NAMED.findall(result.stderr), (done, told.stdout, result.stderr)
        assert result.exit_code == 0 or "cannot be mended" in result.stdout, (done, result.output)
        assert call("verify", root).exit_code == 0 or "cannot be mended" in result.stdout, done


@pytest.mark.parametrize("lost", ["zeros", "no bytes", "no file", "one damaged record"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_of_which_no_record_is_left_is_to_be_restored_and_that_is_said_once(
    kind: str, lost: str, originals: dict[str, list[Original]], tmp_path: Path, call: Call
) -> None:
    root = originals[kind][0].copy(tmp_path / "store")
    first, *more = sorted((root / "commitlog").iterdir())
    for path in more if lost != "no file" else (first, *more):
        path.unlink()
    if lost != "no file":
        head = first.read_bytes()[:20] if lost == "one damaged record" else b""
        first.write_bytes(b"" if lost == "no bytes" else head.ljust(first.stat().st_size, b"\0"))
    told = call("verify", root)
    assert told.stdout.count("  do  ") == 1, told.stdout
    assert "restore commitlog/ from a copy" in told.stdout
    assert "restore" in call("repair", root).stderr
