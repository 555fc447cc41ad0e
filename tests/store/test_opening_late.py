"""Opening, checking and reading in a thread that goes on when the main thread has returned, and at exit."""

import subprocess
import sys
from pathlib import Path

import pytest

import stratalog

WORK = """
import pathlib, sys, threading
root, when, loaded = sys.argv[1:]
if loaded == "before":
    import stratalog.tools.verify
def work():
    if when == "thread":
        threading.main_thread().join()
    import stratalog
    from stratalog.tools.verify import verify
    for mode in ("r", "w"):
        with stratalog.open(root, mode=mode) as store:
            print(mode, sum(1 for _ in store.queue("t").read()), len(store.query("t", key="k1")))
    print(verify(pathlib.Path(root)).ok, flush=True)
if when == "thread":
    threading.Thread(target=work).start()
else:
    import atexit
    atexit.register(work)
"""


@pytest.mark.parametrize("loaded", ["before", "then"])
@pytest.mark.parametrize("when", ["thread", "atexit"])
def test_a_store_is_opened_after_the_main_thread_has_returned(when: str, loaded: str, tmp_path: Path) -> None:
    """The interpreter starts no threads for a pool then: the work is done in the thread that asks."""
    count = 3000
    with stratalog.open(tmp_path / "s", small=True, mapped_file_size_commit_log=32 << 20) as store:
        store.queue("t").put_many([b"x" * 5000] * count)
        store.put("t", b"last", keys="k1")
    (tmp_path / "s" / "abort").touch()
    (tmp_path / "s" / "checkpoint").unlink()
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path / "s"), when, loaded],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split("\n")[:3] == [f"r {count + 1} 1", f"w {count + 1} 1", "True"], done.stderr


POOL = """
import threading
from stratalog.helpers import ThreadPool
def work():
    with ThreadPool(2, "stratalog-test") as pool:
        assert pool.submit(threading.current_thread).result() is not threading.current_thread()
        threading.main_thread().join()
        assert [pool.submit(pow, number, 2).result() for number in range(3)] == [0, 1, 4]
    with ThreadPool(2, "stratalog-test") as pool:
        assert [pool.submit(pow, number, 2).result() for number in range(3)] == [0, 1, 4]
    print("done")
threading.Thread(target=work).start()
"""


def test_work_goes_on_when_the_main_thread_returns_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", POOL], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")
