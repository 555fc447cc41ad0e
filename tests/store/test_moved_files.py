"""Files of queues are exchanged, and a record is damaged: it is not taken for the first one of a re-created topic."""

import random
from pathlib import Path

import pytest

from store.kinds import KINDS, Kind
from torture.kinds import Judge, Original, flip_record, swap_files


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Original]:
    place = tmp_path_factory.mktemp("originals")
    return {kind.name: Original(kind, place / kind.name) for kind in KINDS}


@pytest.mark.one_in(450)
@pytest.mark.parametrize("number", range(400))
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_whole_message_is_served(
    kind: Kind, number: int, originals: dict[str, Original], tmp_path: Path
) -> None:  # fmt: skip
    original, chance = originals[kind.name], random.Random(f"{kind} {number}")
    files = dict(original.files)
    swap_files(chance, original, files)
    flip_record(chance, original, files)
    Judge(original, tmp_path / "store").judge(files, "swap_files, flip_record", chance, comes_later=False)
