"""A directory in the place of any file of a store, a file in that of any directory: every command names it and a step
that helps, or does its work."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from typer.testing import Result

from cli.calls import Call
from store.kinds import BATCH, LIGHT_EXTENDED, Content
from store.model import scratch_folder

STORE = "STORE"
VERBS: dict[str, list[str]] = {
    "put": ["put", STORE, "other", "a body"],
    "get": ["get", STORE, "parent"],
    "query": ["query", STORE, "parent", "key"],
    "verify": ["verify", STORE],
    "repair": ["repair", STORE],
    "repair --yes": ["repair", STORE, "--in-place", "--yes"],
    "rebuild": ["rebuild", STORE, "--yes"],
    "inspect": ["inspect", STORE],
    "dump": ["dump", STORE],
}
STEPS = ("remove it", "move it out of", "stratalog repair", "stratalog rebuild")
UNFINISHED = ("abort.tmp", "checkpoint.tmp", "file-sizes.json.tmp", "queues.snapshot.tmp")


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """A store with files of every kind."""
    with scratch_folder() as folder:
        root = folder / "source"
        BATCH.made(root)
        with LIGHT_EXTENDED.open(root) as store:
            LIGHT_EXTENDED.fill(store, Content())
            store.create_topic("other", queues=1)
        (root / "config" / "consumerOffset.json").write_text("{}")
        yield root


def names(root: Path) -> list[str]:
    """The first and the last file of each directory, those of the configuration, and files that are there for a moment
    only."""
    found: dict[Path, list[Path]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        found.setdefault(path.parent, []).append(path)
    picked = [path for paths in found.values() for path in {paths[0], paths[-1]}]
    picked += [*found[root], *found[root / "config"]]
    more = ("abort", *UNFINISHED, "config/subscriptionGroup.json", "config/consumerOffset.json.bak")
    return sorted({str(path.relative_to(root)) for path in picked} | set(more))


def run_on(root: Path, call: Call, verb: str) -> Result:
    return call(*(str(root) if word == STORE else word for word in VERBS[verb]))


@pytest.mark.one_in(72)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ["closed", "not closed"])
def test_a_directory_in_the_place_of_a_file_is_named_with_a_step_that_helps(
    state: str, verb: str, source: Path, call: Call
) -> None:
    root = source.with_name("store")
    run = partial(run_on, root, call)
    for name in names(source):
        rmtree(root, ignore_errors=True)
        copytree(source, root)
        if state == "not closed":
            (root / "abort").touch()
        (root / name).unlink(missing_ok=True)
        (root / name).mkdir()
        result = run(verb)
        told = result.stderr + result.stdout
        assert "Traceback" not in told
        is_of_log = name.startswith("commitlog")
        if verb == "verify":
            assert str(root / name) in told
            assert result.exit_code == 1 or name in UNFINISHED
        if result.exit_code and verb != "repair":
            assert str(root / name) in told or is_of_log, told
            assert any(step in told for step in STEPS), told
            assert "left" not in told or verb == "repair --yes" or name in UNFINISHED
        if verb == "put":
            assert "Nothing was changed" not in told
        if not result.exit_code and verb in ("repair --yes", "rebuild"):
            assert run("verify").exit_code == 0 or (verb == "rebuild" and name.startswith(("commitlog", "config")))
        elif result.exit_code and not is_of_log:
            (root / name).rename(root.with_name("away"))
            rmtree(root.with_name("away"))
            assert run("put").exit_code == 0
            if verb == "repair --yes":
                assert run(verb).exit_code == 0


def directories(root: Path) -> list[str]:
    """Every directory of a store, and those that a repair makes."""
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    return sorted({*found, "stratalog-quarantine", "stratalog-rebuild.tmp"})


@pytest.mark.one_in(72)
@pytest.mark.parametrize("verb", VERBS)
def test_a_file_in_the_place_of_a_directory_is_named_with_a_step_that_helps(
    verb: str, source: Path, call: Call
) -> None:
    root = source.with_name("store")
    run = partial(run_on, root, call)
    for name in directories(source):
        rmtree(root, ignore_errors=True)
        copytree(source, root)
        rmtree(root / name, ignore_errors=True)
        (root / name).touch()
        result = run(verb)
        told = result.stderr + result.stdout
        assert "Traceback" not in told
        if verb == "verify":
            assert str(root / name) in told
            assert result.exit_code or name == "stratalog-rebuild.tmp"
        if result.exit_code and name != "stratalog-rebuild.tmp":
            assert str(root / name) in told, told
            assert "move it out of" in told, told
            (root / name).unlink()
            if name != "commitlog":  # which nothing else can make again
                assert run("repair --yes").exit_code == 0
        elif verb in ("repair --yes", "rebuild"):
            assert result.exit_code == 0, told
            assert run("verify").exit_code == 0
