"""Both sides take turns at one store, stopping cleanly, killed or halted: nothing acknowledged is lost, ever."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interop.drafts import Ledger, Reading, drafts, fill
from interop.rocketmq import HERE, RocketMQ
from interop.views import (
    Sizes,
    assert_same,
    check_answers,
    java_reading,
    java_settings,
    open_ours,
    our_answers,
    our_reading,
    put_by_java,
    questions_about,
    random_sizes,
    took_the_clean_road,
)
from stratalog.layout.names import ABORT, COMMIT_LOG, CONSUME_QUEUE, INDEX, offset_name
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk

ROUNDS = {
    "clean": ("ours", "theirs", "ours", "theirs", "ours"),
    "we are killed": ("theirs", "ours killed", "theirs", "ours killed", "ours", "theirs"),
    "it is halted": ("ours", "theirs halted", "ours", "theirs halted", "theirs", "ours"),
    "both are": ("ours killed", "theirs halted", "ours killed", "theirs halted", "ours", "theirs"),
}
FLUSH = ("async", "sync")


class Shared:
    """One directory that both sides use in turn, and the books of what was acknowledged."""

    def __init__(self, directory: Path, rocketmq: RocketMQ, sizes: Sizes) -> None:
        self.directory = directory
        self.rocketmq = rocketmq
        self.sizes = sizes
        self.flush = "async"
        self.ledger = Ledger()
        self.crashed = False
        self.lost_ms: set[int] = set()
        self.reading: Reading = {}

    def ours(self, seed: int, count: int, *, killed: bool) -> None:
        """We open, compare, put and close; or a process of ours does, and is killed."""
        with open_ours(self.directory, self.sizes, self.rocketmq, flush=self.flush) as store:
            assert store.recovery.clean != self.crashed
            assert not store.recovery.quarantined
            self._check(our_reading(store))
            questions = questions_about(self.reading, with_tags=self.rocketmq.has_tag_index, seed=seed)
            answers = our_answers(store, questions)
            if not killed:
                for draft, queue_offset in fill(store, drafts(seed, count), seed):
                    self.ledger.note(draft, queue_offset)
        check_answers(self.reading, questions, answers, lost_ms=self.lost_ms)
        self.crashed = killed
        if killed:
            self.put_until_killed(seed, count)

    def put_until_killed(self, seed: int, count: int, **more: str) -> None:
        settings = self.sizes | {"compatibility": self.rocketmq.compatibility, "flush": self.flush}
        given = {"directory": str(self.directory), "settings": settings, "seed": seed, "count": 4 * count} | more
        command = [sys.executable, str(HERE / "writer.py"), json.dumps(given)]
        messages = drafts(seed, 4 * count)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
            assert process.stdout
            for number, line in enumerate(process.stdout):
                if number == count:
                    process.kill()
                if line.endswith("\n"):
                    draft, queue_offset = map(int, line.split())
                    self.ledger.note(messages[draft], queue_offset)
        assert process.returncode == -9, "the process was to be killed while it puts"
        assert (self.directory / ABORT).exists()

    def theirs(self, seed: int, count: int, *, halted: bool) -> None:
        """RocketMQ opens, compares, puts and closes; or its process halts at once behind the last answer."""
        settings = java_settings(self.sizes, flushDiskType=f"{self.flush.upper()}_FLUSH")
        if self.crashed:
            self.lost_ms.add(Checkpoint.load(self.directory, Disk()).index_msg_timestamp)
        self.rocketmq.logged()
        opened = self.rocketmq.ask("open", directory=str(self.directory), settings=settings)
        assert opened["loaded"]
        assert took_the_clean_road(self.rocketmq.logged()) != self.crashed
        self._check(java_reading(self.rocketmq))
        questions = questions_about(self.reading, with_tags=self.rocketmq.has_tag_index, seed=seed)
        answers = self.rocketmq.ask("ask", questions=questions)["answers"]
        check_answers(self.reading, questions, answers, lost_ms=self.lost_ms)
        messages = drafts(seed, count)
        self.crashed = halted
        if halted:
            put_by_java(self.rocketmq, messages, self.ledger, halt_after=count - 1)
            assert (self.directory / ABORT).exists()
        else:
            put_by_java(self.rocketmq, messages, self.ledger)
            self.rocketmq.ask("close")

    def _check(self, reading: Reading) -> None:
        """Everything acknowledged is there, and what was seen before is seen unchanged."""
        self.ledger.check(reading, exactly=not self.crashed)
        before = {key: reading[key][: len(messages)] for key, messages in self.reading.items()}
        assert_same(before, self.reading)
        self.reading = reading


@pytest.mark.parametrize("turns", ROUNDS.values(), ids=ROUNDS)
def test_turns_lose_nothing(rocketmq: RocketMQ, turns: tuple[str, ...], tmp_path: Path) -> None:
    name = f"{rocketmq.release} {' '.join(turns)}"
    chance = random.Random(name)
    shared = Shared(tmp_path, rocketmq, random_sizes(name))
    for number, turn in enumerate((*turns, "ours")):
        side, _, stop = turn.partition(" ")
        shared.flush = FLUSH[number // 2 % 2]
        if side == "ours":
            shared.ours(number, chance.randrange(50, 500), killed=bool(stop))
        else:
            shared.theirs(number, chance.randrange(20, 200), halted=bool(stop))


def test_a_queue_file_that_rocketmq_had_no_time_to_extend_is_nothing(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """It creates a file empty and gives it its length afterwards: a halt in between leaves one without bytes."""
    shared = Shared(tmp_path, rocketmq, random_sizes(f"{rocketmq.release} empty file"))
    shared.theirs(1, 100, halted=True)
    queue = next((tmp_path / CONSUME_QUEUE).rglob(offset_name(0))).parent
    newest = max(int(path.name) for path in queue.iterdir())
    (queue / offset_name(newest + shared.sizes["mapped_file_size_consume_queue"])).touch()
    shared.ours(2, 300, killed=False)
    shared.theirs(3, 20, halted=False)


@pytest.mark.parametrize("part", [COMMIT_LOG, CONSUME_QUEUE, INDEX])
def test_a_file_that_we_had_no_time_to_make_is_nothing(rocketmq: RocketMQ, part: str, tmp_path: Path) -> None:
    shared = Shared(tmp_path, rocketmq, random_sizes(f"{rocketmq.release} unfinished"))
    shared.crashed = True
    shared.put_until_killed(1, 1000, die_in=part)
    shared.theirs(2, 20, halted=False)
    shared.ours(3, 50, killed=False)
