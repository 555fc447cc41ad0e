"""`make torture`: every reliability figure from one command, with a seed. Ends non-zero at any violation."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from torture.report import Torture, run_row, show
from torture.rows import ROWS

DEFAULT_SEED = 20240607


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--form", choices=("short", "full"), default="full")
    parser.add_argument("--rows", default="", help=f"some of {','.join(ROWS)}; all when empty")
    parser.add_argument("--case", default=None, help="only the case of this name, where cases stand alone")
    given = parser.parse_args()
    wanted = [name for name in given.rows.split(",") if name] or list(ROWS)
    if unknown := [name for name in wanted if name not in ROWS]:
        parser.error(f"unknown row {unknown[0]!r}; there are {', '.join(ROWS)}")
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=memory if os.access(memory, os.W_OK) else None))
    disk_folder = Path(tempfile.mkdtemp(prefix="torture-"))
    rows = []
    torture = Torture(given.seed, given.form == "full", folder, disk_folder, given.case)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the table so far is shown
    try:
        for name in wanted:
            what, function = ROWS[name]
            rows.append(run_row(name, what, function, torture))
            done = rows[-1]
            sys.stderr.write(f"{name}: {done.cases:,} cases, {done.failed} violations, {done.seconds:.1f} s\n")
            if done.stopped:
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(disk_folder, ignore_errors=True)
    return 0 if show(rows, torture) else 1


if __name__ == "__main__":
    sys.exit(main())
