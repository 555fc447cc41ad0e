"""The other runner: Apache RocketMQ's store in a JVM that lives, and stays warm, through the whole race."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.rocketmq import WARMED_UP, RocketMQ

from bench.harness import Bench

RELEASE = "5.5.0"
NAME = f"RocketMQ {RELEASE}"
_SOURCES = (Path(__file__).parent / "java" / "Race.java",)


@contextmanager
def rival_of(bench: Bench) -> Iterator["Rival"]:
    """A JVM for one floor, and at its end what the rest of the machine did meanwhile."""
    with bench.folder("rival") as folder:
        rival = Rival(folder)
        noise = Noise(rival)
        try:
            yield rival
            bench.notes.append(noise.text())
        finally:
            rival.close()


class Rival:
    """One RocketMQ; one store at a time. `java/Race.java` says what there is to ask. Times are seconds here."""

    def __init__(self, directory: Path) -> None:
        self._process = RocketMQ(RELEASE, directory, sources=_SOURCES, main="Race", options=WARMED_UP)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self._process.ask(do, **arguments)

    @contextmanager
    def store(self, path: Path, **conf: object) -> Iterator[dict[str, Any]]:
        """A store that is open inside the block; yields what opening it took. Closing takes three seconds."""
        opened = self.ask("open", store=str(path), conf=conf)
        try:
            yield opened
        finally:
            self.ask("close")

    def warm_up(self, least_s: float, do: str, **arguments: Any) -> None:
        """Ask for the same again and again, so that the JVM has compiled it for good before it counts."""
        end = time.perf_counter() + least_s
        while time.perf_counter() < end:
            self.ask(do, **arguments)

    def put_rate(self, count: int, body_size: int, how: str, *, in_flight: int = 1) -> float:
        """Messages a second, until queues and index know them."""
        took = self.ask("put", count=count, body=body_size, how=how, inFlight=in_flight)
        return count / (took["settled"] / 1e9)

    def close(self) -> None:
        self._process.close()


class Noise:
    """What other processes take of the cores: a busy machine's figures move, ratios less, and both are worth less."""

    def __init__(self, rival: Rival) -> None:
        self._rival = rival
        self._begin, self._busy_s = time.perf_counter(), self._others_s()

    def _others_s(self) -> float:
        """CPU seconds of the machine that neither runner used, since it started."""
        user, nice, system, _idle, _waiting, interrupt, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
        busy_s = (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")
        return busy_s - time.process_time() - float(self._rival.ask("cpu")["cpu"]) / 1e9

    def text(self) -> str:
        elapsed_s = time.perf_counter() - self._begin
        cores = max(0.0, self._others_s() - self._busy_s) / elapsed_s
        return f"noise beside {NAME}: other processes used {cores:.2f} of {os.cpu_count()} cores over {elapsed_s:.0f} s"
