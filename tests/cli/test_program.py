"""The program as a process: how it is started, and what a shell completes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "stratalog"]
COMMANDS = ["demo", "put", "get", "query", "tail", "inspect", "dump", "verify", "repair", "rebuild", "offload", "sql"]


def said(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [*PROGRAM, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_package_runs_as_a_module_under_the_programs_name() -> None:
    assert said("--version").startswith("stratalog ")
    shown = said("--help")
    assert shown.startswith("Usage: stratalog ")
    assert all(f"  {command} " in shown for command in COMMANDS)


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "stratalog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stratalog "$@"\n')
    program.chmod(0o755)
    lines = ['eval "$(stratalog --show-completion)"']
    for words in ("stratalog ver", "stratalog re", "stratalog offload --bro"):
        lines.append(f"COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}; _stratalog_completion stratalog")
        lines.append('echo "${COMPREPLY[*]}"')
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash"], input="\n".join(lines), env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["verify", "repair rebuild", "--broker"], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_for_the_programs_name(shell: str) -> None:
    shown = said("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert f"_STRATALOG_COMPLETE=complete_{shell}" in shown
