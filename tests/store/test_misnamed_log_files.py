"""A log file under another one's name: `verify` prints the step that `repair` asks for, and after it repair works."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, LIGHT_KIND, PLAIN, SIZES, Kind, read_on
from store.test_recreated_topics import killed, unseal
from store.test_refused_opening import log_files
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify


def copied(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def exchanged(source: Path, target: Path) -> None:
    whole = source.read_bytes(), target.read_bytes()
    target.write_bytes(whole[0])
    source.write_bytes(whole[1])


def renamed(source: Path, target: Path) -> None:
    source.replace(target)


def far(source: Path, target: Path) -> None:
    """Under a name that leaves room for more files than any log lacks."""
    source.rename(target.with_name(f"{int(target.name) + 5000 * SIZES['mapped_file_size_commit_log']:020d}"))


HOW: dict[str, Callable[[Path, Path], None]] = {
    "copied over": copied, "exchanged with": exchanged, "moved over": renamed, "moved far behind": far,
}  # fmt: skip
FILES = {"first": 0, "middle": 1, "newest": -1}
LEFT: dict[str, Callable[[Path], object]] = {"closed": lambda root: None, "by RocketMQ": unseal, "killed": killed}


def asked_for(root: Path, settings: StoreSettings) -> str:
    """What repair asks for first."""
    try:
        plan_repair(root, settings=settings)
    except CorruptData as refused:
        return str(refused)
    return ""


@pytest.mark.one_in(108)
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize("source", FILES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_verify_prints_the_step_that_repair_asks_for(
    kind: Kind, how: str, source: str, target: str, left: str, tmp_path: Path
) -> None:
    if source == target:
        return
    root, settings = tmp_path / "store", StoreSettings.make({**SIZES, **kind.settings})
    content = kind.made(root, count=300)
    LEFT[left](root)
    files = log_files(root)
    assert len(files) > 2
    HOW[how](files[FILES[source]], files[FILES[target]])
    is_lost = how in ("copied over", "moved over")
    steps = 0
    while refused := asked_for(root, settings):
        report = verify(root, settings=settings)
        (step,) = {found for problem in report.problems for found in re.findall("`(mv -n [^`]*)`", problem.next_step)}
        first = next(problem for problem in report.problems if step in problem.next_step)
        assert first.next_step in refused
        assert first.path in refused
        assert "repair" not in first.next_step
        assert not [
            problem for problem in report.problems
            if problem.path == first.path and problem is not first
        ]  # fmt: skip
        subprocess.run(step, shell=True, check=True)
        steps += 1
    assert steps == 1
    assert verify(root, settings=settings).ok or is_lost
    plan = plan_repair(root, settings=settings)
    assert repair(plan).ok
    with kind.open(root, mode="r") as store:
        assert not store.recovery.warning
        kept, lost, lost_count = set[int](), set[int](), 0
        for key, messages in content.queues.items():
            found = read_on(store.queue(*key))[0] if key in store.queues() else {}
            assert found.items() <= messages.items()
            kept |= {known.commit_log_offset for known in found.values()}
            lost |= {known.commit_log_offset for known in messages.values()} - kept
            lost_count += len(messages) - len(found)
    assert plan.whole_count == len(kept)
    assert bool(lost) == is_lost
    told_count = plan.lost_count + sum(end - begin for *_, begin, end in plan.missing) + plan.gone_count
    assert told_count == (len(lost) if kind is LIGHT_KIND else lost_count)
    begin = int(files[FILES[target]].name)
    assert all(begin <= place < begin + SIZES["mapped_file_size_commit_log"] for place in lost)
