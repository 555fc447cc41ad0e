"""A process that puts messages until it is killed: `python writer.py`, and as its input a line of JSON: what to do.

It prints a line per acknowledged message, its number and its place, and nothing else. With `die_in` (a part of
the store, as `commitlog`) it kills itself while it makes that part's second file.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import stratalog
from interop.drafts import drafts, fill


def die_in(part: str) -> None:
    """Kill this process in the midst of making a file: it has its size, and nothing else was done with it yet."""
    made: list[str] = []

    def dying(real: Callable[..., None]) -> Callable[..., None]:
        def call(fd: int, *arguments: int) -> None:
            real(fd, *arguments)
            made.extend(path for path in [os.readlink(f"/proc/self/fd/{fd}")] if f"/{part}" in path)
            if len(made) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        return call

    os.posix_fallocate = dying(os.posix_fallocate)
    os.ftruncate = dying(os.ftruncate)


def main() -> None:
    given = json.loads(sys.stdin.readline())
    if "die_in" in given:
        die_in(given["die_in"])
    store = stratalog.open(Path(given["directory"]), **given["settings"])
    messages = drafts(given["seed"], given["count"], odd=given.get("odd", 0))
    numbers = {id(draft): number for number, draft in enumerate(messages)}
    for draft, (queue_offset, commit_log_offset) in fill(store, messages, given["seed"]):
        sys.stdout.write(f"{numbers[id(draft)]} {queue_offset} {commit_log_offset}\n")
        sys.stdout.flush()
    sys.stdin.readline()  # the killer was slow: wait for it, and do not close


if __name__ == "__main__":
    main()
