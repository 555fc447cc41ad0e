"""One directory that both sides use in turn, and the books of what was acknowledged."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stratalog
from interop.drafts import Ledger, Reading, content_of, drafts, fill
from interop.rocketmq import HERE, RocketMQ
from interop.views import (
    JAVA_SLACK_MS,
    Sizes,
    as_seen,
    assert_same,
    assert_same_answers,
    at_risk,
    check_answers,
    java_reading,
    java_settings,
    named_once,
    our_answers,
    our_reading,
    put_by_java,
    questions_about,
    some_in_batches,
    took_the_clean_road,
)
from stratalog.config.settings import Release
from stratalog.errors import CorruptData
from stratalog.layout.message import BLANK, MAGIC_BLANK, decode_record
from stratalog.layout.names import ABORT, COMMIT_LOG
from stratalog.layout.sysflag import enters_queue
from stratalog.store.message_store import MessageStore

ODD = 0.1
"""Share of delayed and transactional messages."""
NO_LIMIT = 100_000
"""Hits of a key: names that stand twice in the index would push others out of a short answer."""


class LogPrefix:
    """The whole records of a CommitLog as they stand on disk, found by a walk of our own before a side opens it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = self._read()
        self.offsets: list[int] = []
        self.hidden: list[int] = []
        """Records that no queue shows."""
        self.end = 0
        self._walk()

    def _read(self) -> dict[int, bytes]:
        return {int(path.name): path.read_bytes() for path in sorted((self._directory / COMMIT_LOG).glob("0*"))}

    def _walk(self) -> None:
        for base, data in self._data.items():
            position = 0
            while position + BLANK.size <= len(data):
                if BLANK.unpack(data, position).magic == MAGIC_BLANK:
                    position = len(data)
                    break
                try:
                    record = decode_record(data, position)
                except CorruptData:
                    break
                if record.properties.endswith(b"\0"):  # killed while it was copied: no checksum covers the properties
                    break
                (self.offsets if enters_queue(record.sys_flag) else self.hidden).append(base + position)
                position += record.total_size
                self.end = base + position
            if position < len(data):
                break

    def at(self, commit_log_offset: int) -> tuple[bytes, int]:
        """The file that the offset is in, and the position there."""
        base = max(base for base in self._data if base <= commit_log_offset)
        return self._data[base], commit_log_offset - base

    def check(self, end_offset: int) -> None:
        """Nothing of it was cut or changed by the side that has opened the store; a blank may stand behind it."""
        now = self._read()
        for base, data in self._data.items():
            kept = min(max(self.end - base, 0), len(data))
            there = now.get(base, b"")[:kept]
            same = there == data[:kept]
            first = base + next((at for at in range(kept) if there[at : at + 1] != data[at : at + 1]), 0)
            assert same, f"commitlog/{base:020d} was changed at {first}, its whole records end at {self.end}"
        ends = {self.end, *(base for base in self._data if base >= self.end)}
        ends |= {base + len(data) for base, data in self._data.items() if base < self.end <= base + len(data)}
        assert end_offset in ends, f"the log ended at {self.end}, now at {end_offset}"


class Writers:
    """Processes of ours that wait for work to be killed at: the next one starts while others are busy."""

    def __init__(self) -> None:
        self._next = self._start()

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(HERE / "writer.py")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def take(self) -> subprocess.Popen[str]:
        taken, self._next = self._next, self._start()
        return taken

    def close(self) -> None:
        with self._next:
            self._next.kill()


class Shared:
    """A store that several sides open one after the other, each checking what the others left."""

    def __init__(self, directory: Path, sizes: Sizes, writers: Writers) -> None:
        self.directory = directory
        self.sizes = sizes
        self.writers = writers
        self.flush = "async"
        self.ledger = Ledger()
        self.crashed = False
        self.lost: list[range] = []
        self.tagged = True
        """Whether every side so far indexes tags: 5.4 began to, and what one side left out stays out."""
        self.reading: Reading = {}
        self.hidden: list[dict[str, Any]] = []

    # -- we ----------------------------------------------------------------------------------------------------------

    def ours(self, release: Release, seed: int, count: int, *, stop: str = "") -> None:
        """We open, compare, put and close; or (`stop="killed"`) a process of ours does, and is killed."""
        self.tagged &= release != "5.3"
        prefix = LogPrefix(self.directory)
        with self.open_ours(release) as store:
            assert store.recovery.clean != self.crashed
            assert not store.recovery.quarantined
            prefix.check(store.log.end_offset)
            self._check(our_reading(store))
            self._check_hidden([as_seen(store.message(offset)) for offset in prefix.hidden])
            questions = self.questions(seed)
            answers = our_answers(store, questions)
            if not stop:
                for draft, place in fill(store, drafts(seed, count, odd=ODD), seed):
                    self.ledger.note(draft, place)
        self._check_answers(questions, answers)
        self.crashed = bool(stop)
        if stop:
            self.put_until_killed(release, seed, count)

    def open_ours(self, release: Release, **more: Any) -> MessageStore:
        return stratalog.open(self.directory, compatibility=release, **self.sizes, **{"flush": self.flush, **more})

    def put_until_killed(self, release: Release, seed: int, count: int, **more: str) -> None:
        settings = self.sizes | {"compatibility": release, "flush": self.flush}
        given = {"directory": str(self.directory), "settings": settings, "seed": seed, "count": 4 * count, "odd": ODD}
        messages = drafts(seed, 4 * count, odd=ODD)
        with self.writers.take() as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(given | more) + "\n")
            process.stdin.flush()
            for number, line in enumerate(process.stdout):
                if number == count:
                    process.kill()
                if line.endswith("\n"):
                    draft, *place = map(int, line.split())
                    self.ledger.note(messages[draft], (place[0], place[1]))
        assert process.returncode == -9, "the process was to be killed while it puts"
        assert (self.directory / ABORT).exists()

    # -- they --------------------------------------------------------------------------------------------------------

    def theirs(self, rocketmq: RocketMQ, seed: int, count: int, *, stop: str = "") -> None:
        """RocketMQ opens, compares, puts and closes; or its process halts behind an answer, or is killed."""
        self.tagged &= rocketmq.has_tag_index
        prefix = LogPrefix(self.directory)
        if self.crashed:
            self.lost.append(at_risk(self.directory, self.sizes, prefix.end))
        rocketmq.logged()
        opened = rocketmq.ask("open", directory=str(self.directory), settings=self.java_settings())
        assert opened["loaded"]
        assert took_the_clean_road(rocketmq.logged()) != self.crashed
        prefix.check(opened["end_offset"])
        walked = [[offset, holds] for offset, _, holds in rocketmq.ask("log")["records"]]
        assert walked == [[offset, True] for offset in sorted([*prefix.offsets, *prefix.hidden])]
        self._check(java_reading(rocketmq))
        self._check_hidden(rocketmq.ask("look", offsets=prefix.hidden)["messages"])
        questions = self.questions(seed)
        answers = named_once(rocketmq.ask("ask", questions=questions)["answers"], self.hidden)
        self._check_answers(questions, answers, slack_ms=JAVA_SLACK_MS)
        with self.open_ours(rocketmq.compatibility, mode="r") as beside:
            assert_same(our_reading(beside), self.reading)
            our_own = our_answers(beside, questions)
        self._check_answers(questions, our_own)
        if not self.lost:
            assert_same_answers(questions, our_own, answers)
        sendings = some_in_batches(drafts(seed, count, odd=ODD), seed)
        self.crashed = bool(stop)
        ways = {"halted": {"halt_after": len(sendings) - 1}, "killed": {"kill_after": len(sendings) // 2}}
        put_by_java(rocketmq, sendings, self.ledger, **ways.get(stop, {}))
        if stop:
            assert (self.directory / ABORT).exists()
        else:
            rocketmq.ask("close")

    def java_settings(self) -> Any:
        return java_settings(self.sizes, flushDiskType=f"{self.flush.upper()}_FLUSH", maxMsgsNumBatch=NO_LIMIT)

    # -- both --------------------------------------------------------------------------------------------------------

    def _check_answers(self, questions: list[Any], answers: list[list[int]], *, slack_ms: int = 0) -> None:
        hidden = self.hidden
        check_answers(self.reading, questions, answers, lost=self.lost, hidden=hidden, slack_ms=slack_ms)

    def questions(self, seed: int) -> list[dict[str, Any]]:
        return questions_about(self.reading, with_tags=self.tagged, seed=seed, limit=NO_LIMIT)

    def _check(self, reading: Reading) -> None:
        """Everything acknowledged is there, and what was seen before is seen unchanged."""
        self.ledger.check(reading, exactly=not self.crashed)
        before = {key: reading[key][: len(messages)] for key, messages in self.reading.items()}
        assert_same(before, self.reading)
        self.reading = reading

    def _check_hidden(self, messages: list[Any]) -> None:
        """What no queue shows stands in the log where it was put; after a crash more of it may."""
        self.hidden = messages
        found = {message["commit_log_offset"]: content_of(message) for message in messages}
        assert self.ledger.hidden.items() <= found.items() if self.crashed else self.ledger.hidden == found
        self.ledger.hidden = found


Share = Callable[[random.Random | str], Shared]
