"""Planted faults: each must be caught by the tests that are there for it.

    make torture ROWS=mutations        # the whole table
    make torture ROWS=mutations CASE='skip the flush'

A fault is a replacement in one module of the store. The changed module is laid over the package in a folder of its own
(the rest of the package is found where it is), and the tests named run on that. A replacement that does not apply any
more is a violation: a check that has not been seen to fail proves nothing.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import stratalog
from torture.report import Row, Torture, Undetected

PACKAGE = Path(stratalog.__file__).parent
TESTS = Path(__file__).parents[1]
CAUGHT, SURVIVED = 1, 0
"""What pytest ends with when a test fails, and when all pass."""
POWER, FAULTS, RECOVERY, OPENING = (f"crash/test_{name}.py" for name in ("power_cut", "faults", "recovery", "opening"))


@dataclass(frozen=True)
class Fault:
    """`old` stands exactly once in the module and becomes `new`; `tests` (pytest arguments) must fail then."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    def changed(self) -> str:
        text = (PACKAGE / self.module).read_text()
        if text.count(self.old) != 1:
            raise LookupError(f"{self.name}: the text to replace stands {text.count(self.old)} times in {self.module}")
        return text.replace(self.old, self.new)


FAULTS_PLANTED = (
    Fault(
        "skip the flush", "store/commit_log.py",
        "[first : last + 1]:\n                    file.sync()\n", "[first : last + 1]:\n                    pass\n",
        (f"{POWER}::test_no_acknowledged_message_is_lost_in_any_power_cut",),
    ),
    Fault(
        "acknowledge before the flush", "store/flush.py",
        "        while log.durable_offset < offset:\n", "        while False:\n",
        (f"{POWER}::test_no_acknowledged_message_is_lost_in_any_power_cut",),
    ),
    Fault(
        "no fsync of the directory", "store/disk.py",
        "            self._process.os.fsync(directory.fds[0])\n        except OSError",
        "            pass\n        except OSError",
        (f"{POWER}::test_new_files_and_names_are_durable_before_a_put_is_acknowledged",),
    ),
    Fault(
        "believe the seal while queues are built again", "store/recovery.py",
        "            invalidate()\n", "            pass\n",
        (f"{POWER}::test_what_was_being_built_again_is_not_believed",),
    ),
    Fault(
        "no zeroing behind a cut", "store/commit_log.py",
        "_zero_behind(self._files[-1], tail):", "not tail:",
        (f"{RECOVERY}::test_a_tail_torn_at_any_byte_leaves_exactly_the_whole_records",),
    ),
    Fault(
        "no sync after the zeroing", "store/commit_log.py",
        "_zero_behind(self._files[-1], tail):\n                self._files[-1].sync()",
        "_zero_behind(self._files[-1], tail):\n                pass",
        (f"{OPENING}::test_a_tail_is_synced_after_it_was_zeroed",),
    ),
    Fault(
        "try a failed flush again", "store/commit_log.py",
        "                self.fail(failed(f\"flush of {self.directory}\", error))\n"
        "                assert self._failure is not None\n                raise self._failure from error",
        "                raise failed(f\"flush of {self.directory}\", error) from error",
        (FAULTS, "-k", "failed_flush or never_acknowledged"),
    ),
    Fault(
        "a failed flush of queues stops no put", "store/message_store.py",
        "        self.log.fail(self.derived_failure)\n        return self.derived_failure\n",
        "        failure, self.derived_failure = self.derived_failure, None\n        return failure\n",
        (f"{OPENING}::test_a_failed_flush_of_queues_is_never_tried_again",),
    ),
    Fault(
        "checkpoint from live progress", "store/message_store.py",
        "            self._dispatcher.files.sync()\n",
        "            self._dispatcher.files.sync()\n            progress, seal = self._dispatcher.snapshot()\n",
        (f"{POWER}::test_the_checkpoint_vouches_only_for_units_that_were_synced", OPENING, "-k", "checkpoint"),
    ),
    Fault(
        "checkpoint ahead of the queues", "store/message_store.py",
        "            self._dispatcher.files.sync()\n", "",
        (POWER,),
    ),
    Fault(
        "no fsync before the rename of a small file", "store/disk.py",
        "                OpenFile(temporary, file, self._process).write(0, data)\n"
        "                self._process.os.fsync(file.fileno())\n",
        "                OpenFile(temporary, file, self._process).write(0, data)\n",
        (f"{OPENING}::test_a_small_file_is_synced_before_it_takes_its_name",),
    ),
    Fault(
        "no fsync before the rename of a log file", "store/disk.py",
        "                if durably:\n                    self._process.os.fsync(fd)\n", "",
        (POWER, OPENING),
    ),
    Fault(
        "no body CRC in recovery", "store/log_scan.py",
        "file.address, position, piece.end, piece.base, VERIFY, positions, sizes",
        "file.address, position, piece.end, piece.base, TRUST, positions, sizes",
        (RECOVERY,),
    ),
    Fault(
        "no look at the log offset in recovery", "store/log_scan.py",
        "file.address, position, piece.end, piece.base, VERIFY",
        "file.address, position, piece.end, np.int64(-1), VERIFY",
        (RECOVERY, OPENING),
    ),
    Fault(
        "dispatch beyond what is durable", "store/message_store.py",
        "dispatch(self._readable_end)", "dispatch(self.log.end_offset)",
        ("store/test_put.py::test_under_sync_flush_readers_see_only_durable_messages",),
    ),
    Fault(
        "index header before its items", "store/index_file.py",
        "            self.mapped.sync()\n            self.mapped.map[: HEADER.size] =",
        "            self.mapped.map[: HEADER.size] =",
        (f"{POWER}::test_items_of_the_index_are_durable_before_a_header_counts_them",),
    ),
    Fault(
        "keys of a removed index file stay missing", "store/index_file.py",
        "bool(self.files) and clean", "bool(self.files)",
        (RECOVERY, "-k", "last_full_index_file"),
    ),
    Fault(
        "clean mark before the last flush", "store/message_store.py",
        "            self._flush_log()\n            self.dispatch()\n            self._keep(",
        "            self._disk.remove(self.root / names.ABORT)\n"
        "            self._flush_log()\n            self.dispatch()\n            self._keep(",
        (f"{POWER}::test_a_stop_counts_as_clean_only_when_everything_is_durable",),
    ),
    Fault(
        "the lock is not taken", "store/disk.py",
        "            self._set(fcntl.F_WRLCK)\n", "            pass\n",
        ("store/test_open.py",),
    ),
    Fault(
        "a forked child goes on with its parent's store", "store/forks.py",
        "os.register_at_fork(after_in_child=_after_fork_in_child)\n", "",
        ("store/test_fork.py::test_no_public_name_of_an_inherited_store_or_queue_works",),
    ),
    Fault(
        "a reader's failed flush is passed over", "store/open_files.py",
        "            self._on_failure(self._failure)\n            raise self._failure from error\n",
        "            self._failure = None\n",
        (f"{OPENING}::test_a_flush_that_fails_while_a_file_is_closed_fails_the_store_whoever_asked",),
    ),
    Fault(
        "a killed offload's new names are not synced", "tiered/segment.py",
        "                    self._new_names.add(path)\n            while view:",
        "                    pass\n            while view:",
        ("tiered/test_crash.py",),
    ),
)  # fmt: skip


def overlay(folder: Path, fault: Fault) -> Path:
    """A folder to put first on the path: the package, with one module changed and all else where it was."""
    shutil.rmtree(folder, ignore_errors=True)
    package, place = folder / PACKAGE.name, folder / PACKAGE.name / fault.module
    place.parent.mkdir(parents=True)
    for directory in {package, place.parent}:
        original = PACKAGE / directory.relative_to(package)
        text = (original / "__init__.py").read_text()
        (directory / "__init__.py").write_text(f"__path__.append({str(original)!r})\n{text}")
    place.write_text(fault.changed())
    return folder


def run_tests(fault: Fault, folder: Path) -> "subprocess.CompletedProcess[str]":
    arguments = [str(TESTS / test) if test.endswith(".py") or "::" in test else test for test in fault.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *arguments]
    path = os.pathsep.join([str(overlay(folder / "src", fault)), str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def mutations(torture: Torture, row: Row) -> None:
    """All faults in the full form; in the short one all must apply, and one is run."""
    short = torture.chance("mutations").sample(FAULTS_PLANTED, 1)
    for fault in FAULTS_PLANTED:
        if torture.wants(fault.name):
            with row.case(fault.name, seconds=700):
                fault.changed()
                if torture.full or fault in short:
                    row.notes.append(_judged(fault, torture.place("mutations")))
                    sys.stderr.write(f"{row.notes[-1]}\n")


def _judged(fault: Fault, folder: Path) -> str:
    done = run_tests(fault, folder)
    if done.returncode == SURVIVED:
        raise Undetected(f"nothing caught it; these should: {' '.join(fault.tests)}")
    if done.returncode != CAUGHT:
        raise RuntimeError(f"the tests did not run: {done.stdout[-300:]} {done.stderr[-300:]}")
    failed = [line.split(" - ")[0].split("::")[-1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return f"{fault.name} · caught by {failed[0] if failed else '?'} · yes"
