"""Decoders and whole stores under damaged bytes: our error or the right result, no hang, no crash, memory bounded."""

import mmap
import signal
import subprocess
import sys

from torture.fuzz_process import NOTE_SIZE, fuzz, ring
from torture.fuzz_targets import TARGETS
from torture.report import Row, Torture, environment

MEMORY_MAX_KIB = 1 << 20
"""Resident; an idle process with everything imported has a fifth of it."""
FINDINGS_MAX = 5
"""Then the next target."""


def decoders(torture: Torture, row: Row) -> None:
    for name, target in TARGETS.items():
        _fuzz(torture, row, name, torture.count(target.short, target.full))


def stores(torture: Torture, row: Row) -> None:
    _fuzz(torture, row, "store", torture.count(150, 8_000))


def extremes(torture: Torture, row: Row) -> None:
    """Always in a process of its own: a kernel that reads outside of its file ends it."""
    _fuzz_apart(torture, row, "extremes", torture.count(40, 6_000))


def _fuzz(torture: Torture, row: Row, name: str, count: int) -> None:
    if torture.full:
        _fuzz_apart(torture, row, name, count)
        return
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with mmap.mmap(-1, NOTE_SIZE) as note:
            finding = fuzz(name, str(torture.seed), range(count), note)
    finally:
        signal.signal(signal.SIGALRM, before)
    row.cases += count
    if finding:
        row.violation(name, RuntimeError(finding))


def _fuzz_apart(torture: Torture, row: Row, name: str, count: int) -> None:
    """In a process of its own, which may crash."""
    note = torture.place("fuzz") / name
    note.write_bytes(bytes(NOTE_SIZE))
    first, left = 0, count
    if torture.only is not None:
        target, _, number = torture.only.partition("/")
        if target != name:
            return
        first, left = int(number), 1
    for _ in range(FINDINGS_MAX):
        if not left:
            break
        command = [
            sys.executable,
            "-m",
            "torture.fuzz_process",
            name,
            str(torture.seed),
            str(first),
            str(left),
            str(note),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, env=environment())
        if done.returncode == 0:
            row.cases += left
            resident = int(done.stdout.split()[1])
            row.notes.append(f"{name}: {count:,} executions, {resident >> 10} MiB resident at most")
            if resident > MEMORY_MAX_KIB:
                row.violation(name, MemoryError(f"{resident >> 10} MiB resident"))
            break
        number = int.from_bytes(note.read_bytes(), "little")
        row.cases += number + 1 - first
        row.violation(f"{name}/{number}", RuntimeError(_why(done)))
        first, left = number + 1, left - (number + 1 - first)


def _why(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode < 0:
        return f"the process ended with {signal.Signals(-done.returncode).name}: {done.stderr.strip()[-300:]!r}"
    return done.stdout.strip() or done.stderr.strip()[-300:]
