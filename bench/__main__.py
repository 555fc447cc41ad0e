"""`python -m bench`: run the floors, print the machine's facts and one table."""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from bench import machine, report
from bench.harness import Bench, Result, run_floor

FLOORS = {
    "put": "putting without waiting for the disk",
    "sync": "putting durably: one thread, many, asyncio",
    "read": "scan, verify, iterate, decode to Arrow",
    "dispatch": "queues and index from a backlog",
    "lookup": "messages by key, in the local store",
    "startup": "import, --help, first use on a fresh machine",
    "others": "what one would use instead: lmdb, sqlite3, litequeue, persist-queue",
    "spark": "offload to the tier, lookup in the cold tier, Spark scan",
    "race_put": "puts, beside Apache RocketMQ's",
    "race_open": "opening and recovery, beside Apache RocketMQ's; a large store",
    "race_read": "reading and key lookups, beside Apache RocketMQ's",
}
RACE = tuple(name for name in FLOORS if name.startswith("race"))
"""Run only when asked for, by name or all by `race`: they need a JDK, and Maven the first time."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure every path beside the machine's own limit in the same round.",
        epilog="floors: " + "; ".join(f"{name} ({what})" for name, what in FLOORS.items()),
    )
    parser.add_argument(
        "--only",
        metavar="FLOOR,…",
        help="some of the floors",
        default=",".join(name for name in FLOORS if name not in RACE),
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds after the warm-up (default 5; quick 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured there")
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages, for a first look")
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where to write (default: here); cleaned up afterwards"
    )
    given = parser.parse_args()
    given.only = [name for name in given.only.split(",") if name]
    given.only = [floor for name in given.only for floor in (RACE if name == "race" else (name,))]
    unknown = [name for name in given.only if name not in FLOORS]
    if unknown:
        parser.error(f"unknown floor {', '.join(unknown)}; there are {', '.join(FLOORS)}")
    if given.rounds is not None and given.rounds < 1:
        parser.error("--rounds takes a whole number from 1")
    return given


def main() -> None:
    given = arguments()
    given.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=given.dir)).resolve()
    os.environ["TMPDIR"] = str(directory)
    tempfile.tempdir = str(directory)
    try:
        facts = machine.facts(directory)
        print(machine.text(facts), flush=True)
        bench = Bench(directory, rounds=given.rounds or (3 if given.quick else 5), quick=given.quick)
        begin = time.perf_counter()
        results: list[Result] = []
        failed = []
        for name in given.only:
            try:
                results += run_floor(name, importlib.import_module(f"bench.{name}").floor, bench)
            except Exception:  # noqa: BLE001 - one floor's failure must not take the others' figures away
                failed.append(name)
                print(f"\n{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
        print(f"\nmedian of {bench.rounds} interleaved rounds; {time.perf_counter() - begin:.0f} s\n")
        print("\n".join([report.table(results), *bench.notes]))
        if given.json:
            report.save_json(given.json, facts, results, bench.notes)
        if failed:
            sys.exit(f"failed: {', '.join(failed)} (see above)")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
