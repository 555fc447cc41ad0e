"""A crash right after the log went on to a new file: its only record is torn, and the file is still the log's own."""

import shutil
from pathlib import Path

import pytest

from store.kinds import BATCH, PLAIN, SIZES, Content, Kind
from stratalog.layout.message import HEAD
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

LOG_FILE_SIZE = SIZES["mapped_file_size_commit_log"]


@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
@pytest.mark.parametrize("left", ["all but a byte", "half"])
@pytest.mark.parametrize("has_unit", [True, False])
def test_a_torn_first_record_is_a_torn_tail(kind: Kind, left: str, has_unit: bool, tmp_path: Path) -> None:
    live, root, content, number = tmp_path / "live", tmp_path / "store", Content(), 0
    with kind.open(live) as store:
        while store.log.end_offset <= LOG_FILE_SIZE:
            if store.log.end_offset > LOG_FILE_SIZE - 1024:
                store._flush_all()
                shutil.rmtree(root, ignore_errors=True)
                shutil.copytree(live, root)
            kind.put(store, number, content)
            number += 1
        shutil.copytree(live / "commitlog", root / "commitlog", dirs_exist_ok=True)
        if has_unit:
            store.dispatch()
            shutil.copytree(live / kind.tree, root / kind.tree, dirs_exist_ok=True)
    newest = sorted((root / "commitlog").iterdir())[-1]
    assert newest.name == f"{LOG_FILE_SIZE:020d}"
    data = bytearray(newest.read_bytes())
    size = HEAD.unpack(data).total_size
    kept = size - 1 if left == "all but a byte" else size // 2
    data[kept:size] = bytes(size - kept)
    newest.write_bytes(data)

    report = verify(root)
    assert has_unit or report.ok, report.problems
    assert not any("another" in str(problem) for problem in report.problems)
    shutil.copytree(root, tmp_path / "copy")
    with kind.open(root) as store:
        assert store.recovery.end_offset == LOG_FILE_SIZE
        assert not store.recovery.quarantined
    repair(plan_repair(tmp_path / "copy"))
    assert verify(tmp_path / "copy").ok
