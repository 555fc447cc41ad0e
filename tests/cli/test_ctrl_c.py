"""Ctrl-C at points all over a command, from its first import to the last of its output: one line, and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from stratalog.__main__ import main

_, directory, point_count, where, *arguments = sys.argv
sys.argv = ["stratalog", *arguments]
os.umask(0o022)
begin = "raise_at_ctrl_c" if where else "end_at_ctrl_c"  # between them, it ends at once

def run(at):
    '''In a child, with SIGINT at the n-th call in files `where`: exit code, whether it was sent, all calls.'''
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sent, count = (os.read(reading, 100).split() + [b"", b"0"])[:2]
        os.close(reading)
        return status, bool(int(sent or 0)), int(count)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    count, begun = 0, False

    def profile(frame, event, arg):
        nonlocal count, begun
        if event == "return" and frame.f_code.co_name == begin:
            begun = True
        elif event == "return" and frame.f_code.co_name == "flush_output":
            begun = False
        elif begun and event in ("call", "c_call") and frame.f_code.co_filename.startswith(where):
            count += 1
            if count == at:
                sys.setprofile(None)
                os.write(writing, b"1 0")
                os.kill(os.getpid(), signal.SIGINT)

    code = 0
    sys.setprofile(profile)
    try:
        main()
    except SystemExit as error:
        code = error.code or 0
    finally:
        sys.setprofile(None)
    if not at:
        os.write(writing, b"0 %d" % count)
    sys.exit(code)

_, _, count = run(0)
assert count > (500 if where else 50_000), count
near_the_end = range(count - 3, count + 1) if not where else ()
for at in (*range(1, count, count // int(point_count)), *near_the_end):
    status, sent, _ = run(at)
    with open(os.path.join(directory, "err")) as file:
        said = file.read()
    if sent:
        print(at, count, status, said.replace("\\n", "|"))
"""


IMPORTING = "<frozen importlib._bootstrap>"
"""Where the import system takes the locks of modules."""


@pytest.mark.parametrize(
    ("command", "point_count", "where"),
    [("--help", 12, ""), ("inspect", 4, ""), ("inspect", 6, IMPORTING)],
)
def test_it_ends_with_one_line_wherever_it_comes(
    command: str, point_count: int, where: str, small_store: Path, tmp_path: Path
) -> None:
    given = [command] if command == "--help" else [command, str(small_store)]
    line = [sys.executable, "-c", PROGRAM, str(tmp_path), str(point_count), where, *given]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert len(said) >= point_count
    for one in said:
        at, count, text = one.split(" ", 2)
        is_over = not where and int(count) - int(at) < 4  # everything was shown
        assert text in ("130 stratalog: stopped|", "130 stratalog: stopped. Nothing was changed|") or (
            is_over and text == "130 "
        ), one
