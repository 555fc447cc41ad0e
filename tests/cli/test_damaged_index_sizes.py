"""What the commands say of a store whose only index file was damaged, so that nothing tells its slots and items."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.calls import Call, sentence
from golden.cases import golden_case
from stratalog.layout.index import file_size


def overwritten(path: Path) -> None:
    stored = path.read_bytes()
    path.write_bytes(stored[:140] + random.Random(1).randbytes(len(stored) - 140))


def longer(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size + size)


@pytest.mark.parametrize("damage", [overwritten, longer(4096), longer(50)], ids=["random", "+4096", "+50"])
@pytest.mark.parametrize("case", ["transaction", "compressed"])
def test_an_index_that_does_not_tell_its_sizes_is_damage(
    case: str, damage: Callable[[Path], None], tmp_path: Path, call: Call
) -> None:
    root = golden_case(f"local/{case}").unpack_store(tmp_path)
    (path,) = (root / "index").iterdir()
    sizes = golden_case(f"local/{case}").about["conf"]
    given = [f"--set=max_hash_slot_num={sizes['maxHashSlotNum']}", f"--set=max_index_num={sizes['maxIndexNum']}"]
    assert str(path.name) not in call("inspect", root).stdout
    damage(path)
    shown = " ".join(call("inspect", root).stdout.split())
    assert f"index/{path.name} has {path.stat().st_size:,} bytes" in shown
    assert f"stratalog verify {root}" in shown
    assert f"in files of {file_size(5_000_000, 20_000_000):,} bytes" in call("verify", root).stdout
    for command in (["repair", root], ["repair", root, "--in-place", "--yes"], ["rebuild", root, "--yes"]):
        told = sentence(call(*command), exit_code=1)
        assert "do not tell how many slots" in told
        assert f"in files of {file_size(5_000_000, 20_000_000):,} bytes" in told
    assert call("repair", root, "--in-place", "--yes", *given).exit_code == 0
    assert call("verify", root).exit_code == 0
    assert path.name not in call("inspect", root).stdout
