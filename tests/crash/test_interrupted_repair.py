"""Ctrl-C at each line of a repair in a copy: what is said then is true of the copy."""

import shutil
from pathlib import Path

import stratalog
from crash.interrupts import Injector, Interrupted
from store.model import SMALL, flip, log_files
from stratalog.layout.names import UNFINISHED_COPY
from stratalog.tools import repair as repairing
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify


def test_what_an_interrupted_repair_says_of_the_copy_is_true(tmp_path: Path) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    with stratalog.open(root, **SMALL) as store:
        for number in range(5):
            store.put("t", b"body %d" % number)
    path = log_files(root)[0]
    flip(path, path.read_bytes().index(b"body 2"))
    plan = plan_repair(root)
    traced = (repairing.__file__,)
    again, done = f"Remove {copy}, then run it again", f"The repair is done: `stratalog verify {copy}` checks it"
    told = set()
    with Injector(0, traced=traced) as counted:
        assert repair(plan, to=copy).ok
    points = counted.points[::5] + counted.points[-20:]
    assert len(points) > 30
    for number in points:
        shutil.rmtree(copy)
        try:
            with Injector(number, traced=traced) as injector:
                repair(plan, to=copy)
        except Interrupted as error:
            (said,) = getattr(error, "__notes__", [""])
            told.add(said)
            if said == done:
                assert verify(copy).ok, injector.point
            elif said == again and copy.exists():
                shutil.rmtree(copy)
            if said != done:  # nothing at all before the copy is begun, and between two steps
                assert said in ("", "Nothing was changed", again), injector.point
                is_done = copy.exists() and any(copy.iterdir())
                assert is_done <= (said == "" and not (copy / UNFINISHED_COPY).exists()), injector.point
                if not is_done:
                    assert repair(plan, to=copy).ok, injector.point
    assert told >= {"Nothing was changed", again, done}
