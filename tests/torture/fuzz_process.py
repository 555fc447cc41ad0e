"""One target fuzzed in a process of its own, which may crash: the parent knows the seed and the execution.

    python -m torture.fuzz_process TARGET SEED FIRST COUNT NOTE_FILE

Before each execution its number is noted in a shared mapping. Prints `done`, or what went wrong and ends with 1.
"""

import faulthandler
import mmap
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from store.model import scratch_folder
from stratalog.errors import StratalogError
from stratalog.kernels.warm import compile_all
from torture.extremes import fuzz_extremes
from torture.fuzz_targets import TARGETS, Target, make_store, use_store

EXECUTION_SECONDS = 10.0
NOTE_SIZE = 8
MEMORY_SIZE_MAX = 12 << 30
"""Address space: what is asked for beyond raises MemoryError, which is a finding."""
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
WORDS = (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x00\x01")


def damaged(inputs: list[bytes], chance: random.Random) -> bytes:
    """One of the inputs with one to four things done to it; now and then only noise."""
    if chance.random() < 0.03:
        return chance.randbytes(chance.randrange(200))
    data = bytearray(chance.choice(inputs))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(7)
        if what == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            del data[at:]
        elif what == 3:
            data[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif what == 4:
            data[at : at + 4] = chance.choice(WORDS)
        elif what == 5:
            del data[at : at + chance.randrange(1, 20)]
        else:
            data[at : at + 1] = bytes([chance.choice(INTERESTING)])
    return bytes(data)


def executions(name: str, seed: str, numbers: range) -> Iterator[tuple[int, random.Random]]:
    return ((number, random.Random(f"{seed}/{name}/{number}")) for number in numbers)


def fuzz_decoder(name: str, target: Target, seed: str, numbers: range, note: mmap.mmap) -> str | None:
    for number, chance in executions(name, seed, numbers):
        note[:8] = number.to_bytes(8, "little")
        data = damaged(target.inputs, chance)
        signal.setitimer(signal.ITIMER_REAL, EXECUTION_SECONDS)
        try:
            target.call(data)
        except StratalogError:
            continue
        except Exception as error:  # noqa: BLE001 - any other error is the finding
            return f"execution {number}: {_told(error)} of {data[:200]!r}"
    return None


def _told(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "stratalog" in frame.filename]
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {str(error)[:200]}"


def fuzz_store(seed: str, numbers: range, note: mmap.mmap) -> str | None:
    """Whole directories: bytes changed, files cut, made longer, emptied, removed, put in each other's place."""
    folder = Path(tempfile.mkdtemp(prefix="torture-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        root = folder / "store"
        files = make_store(root)
        for number, chance in executions("store", seed, numbers):
            note[:8] = number.to_bytes(8, "little")
            changed = _damage_store(root, files, chance)
            signal.setitimer(signal.ITIMER_REAL, EXECUTION_SECONDS)
            try:
                use_store(root)
            except Exception as error:  # noqa: BLE001 - any other error is the finding
                return f"execution {number}: {_told(error)}, changed: {changed}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                _restore(root, files, changed)
    finally:
        shutil.rmtree(folder)
    return None


def _damage_store(root: Path, files: dict[str, bytes], chance: random.Random) -> list[str]:
    names = sorted(files)
    changed = chance.sample(names, chance.choice((1, 1, 1, 2, 3)))
    if chance.random() < 0.3:
        changed = [chance.choice([name for name in names if name.startswith("index")])]
    for name in changed:
        data, way = bytearray(files[name]), chance.randrange(8)
        if way <= 3 and data:
            for _ in range(chance.choice((1, 1, 3, 20))):
                at = chance.randrange(min(len(data), 3000))
                data[at : at + 4] = chance.choice([*WORDS, chance.randbytes(chance.randrange(1, 5))])[: len(data) - at]
        elif way == 4:
            del data[chance.randrange(len(data) + 1) :]
        elif way == 5:
            data += chance.randbytes(chance.randrange(1, 5000))
        elif way == 6:
            data = bytearray(files[chance.choice(names)])
        else:
            data = bytearray(chance.randbytes(len(data)))
        (root / name).write_bytes(data)
    if chance.random() < 0.1:
        (root / changed[0]).unlink()
    if chance.random() < 0.5:
        (root / "abort").write_text("1")
    return changed


def _restore(root: Path, files: dict[str, bytes], changed: list[str]) -> None:
    (root / "abort").unlink(missing_ok=True)
    for name in changed:
        (root / name).write_bytes(files[name])


def fuzz(name: str, seed: str, numbers: range, note: mmap.mmap) -> str | None:
    """Run executions of a target, or of whole stores; returns the first finding."""
    try:
        if name == "store":
            return fuzz_store(seed, numbers, note)
        if name == "extremes":
            return _fuzz_extremes(seed, numbers, note)
        return fuzz_decoder(name, TARGETS[name], seed, numbers, note)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _fuzz_extremes(seed: str, numbers: range, note: mmap.mmap) -> str | None:
    with scratch_folder() as folder:
        try:
            return fuzz_extremes(seed, numbers, note, folder)
        except Exception as error:  # noqa: BLE001 - any error but ours is the finding
            return f"{_told(error)}; {'; '.join(error.__notes__)}"


def ring(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"not done after {EXECUTION_SECONDS:g} s")


def resident_max_kib() -> int:
    """Of this program alone: `ru_maxrss` begins with what the process that started it had."""
    return int(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))


def main(name: str, seed: str, first: int, count: int, note_path: str) -> int:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_SIZE_MAX, MEMORY_SIZE_MAX))
    compile_all()  # what happens once would count as a hang
    signal.signal(signal.SIGALRM, ring)
    with Path(note_path).open("r+b") as file, mmap.mmap(file.fileno(), NOTE_SIZE) as note:
        finding = fuzz(name, seed, range(first, first + count), note)
    sys.stdout.write(finding or f"done {resident_max_kib()}")
    return 1 if finding else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
