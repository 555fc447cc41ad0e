"""Queues exchanged, none of them of a topic that was created again: whatever refuses names a step that mends all."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import KINDS, Kind, read_on
from store.test_recreated_topics import STATES, settings_of
from stratalog.errors import CorruptData
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

STEPS: dict[str, Callable[[Kind, Path], object]] = {
    "repair": lambda kind, root: repair(plan_repair(root, settings=settings_of(kind))),
    "rebuild": lambda kind, root: rebuild(root, settings=settings_of(kind)),
}


@pytest.mark.one_in(63)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("count", [12, 60, 150])
@pytest.mark.parametrize("what", ["directories", "first files", "last files"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_steps_that_verify_and_errors_name_lead_to_a_whole_store(
    kind: Kind, what: str, count: int, state: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = kind.made(root, count=count)
    STATES[state](root)
    one, other = (
        kind.directory(root, key)
        if what == "directories"
        else kind.files(root, key)[0 if what == "first files" else -1]
        for key in kind.queues
    )
    for source, target in ((one, root / "between"), (other, one), (root / "between", other)):
        shutil.move(source, target)
    report, text = verify(root, settings=settings_of(kind)), ""
    step = "" if report.ok else report.problems[0].next_step
    for _ in range(3):
        if (named := re.search(r"`stratalog (repair|rebuild) ", step)) is None:
            break
        try:
            STEPS[named[1]](kind, root)
            break
        except CorruptData as error:
            step = text = str(error)
    else:
        pytest.fail(text)
    with kind.open(root) as store:
        for key in kind.queues:
            assert read_on(store.queue(*key)) == (content.queues[key], [], set())
    assert verify(root, settings=settings_of(kind)).ok
