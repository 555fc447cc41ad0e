"""Golden cases: stores and tiers that Apache RocketMQ wrote, with what RocketMQ itself reads from them.

    case = golden_case("local/torn-cut-clean")          # or "tiered/plain-5.5.0", or "broker"
    root = case.unpack_store(tmp_path)                   # a private copy of the message store directory
    case.about["conf"]                                   # case.json: release, configuration, damage, sha256 of files
    case.expected("message")                             # lines of expected.jsonl of that kind
    case.plan(), case.puts()                             # what was put, in order, and what each put answered

What the lines hold is written in `tests/data/golden/README.md`.
"""

import gzip
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "data" / "golden"

Line = dict[str, Any]


@dataclass(frozen=True)
class GoldenCase:
    """One case. `name` is its folder below `tests/data/golden`; nothing is unpacked before it is asked for."""

    name: str

    @property
    def directory(self) -> Path:
        return GOLDEN / self.name

    @cached_property
    def about(self) -> Line:
        """`case.json`."""
        about: Line = json.loads((self.directory / "case.json").read_text())
        return about

    @property
    def release(self) -> str:
        """Release that reads the case ("5.5.0"); that of its last writer, too."""
        return str(self.about.get("read_by") or self.about["rocketmq"]).split()[0]

    def lines(self, file: str) -> list[Line]:
        """Every line of `<file>.jsonl`, for example `expire` or `halt` of a tiered case."""
        with gzip.open(self.directory / f"{file}.jsonl.gz", "rt", encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    def expected(self, *kinds: str) -> list[Line]:
        """What RocketMQ reads: every line, or those of these kinds (`message`, `queue`, `record`, `answer` …)."""
        return [line for line in self.lines("expected") if not kinds or line.get("kind") in kinds]

    def plan(self) -> list[Line]:
        """The operations of a local case, in order. Cases with the same plan share one file."""
        shared: dict[str, str] = json.loads((GOLDEN / "local" / "shared-plans.json").read_text())
        folder = self.directory.name
        return GoldenCase(f"local/{shared.get(folder, folder)}").lines("plan")

    def puts(self) -> list[Line]:
        """What each operation of the plan answered: status, offsets, store time, message id."""
        return self.lines("puts")

    def unpack_store(self, to: Path) -> Path:
        """A private copy of the message store below `to`; returns the store's root.

        For a tiered case: the local store beside the tier. 5.3.3 tiered cases may have none (`has_store`).
        """
        return self._unpack(self._store_archive, to / "store", "store")

    def unpack_tier(self, to: Path) -> Path:
        """A private copy of the tier's files below `to`; returns the tier's root."""
        return self._unpack("tier.tar.gz", to / "tier", "tier")

    @property
    def has_store(self) -> bool:
        return (self.directory / self._store_archive).exists()

    def store_files(self) -> Iterator[tuple[str, bytes]]:
        """Path below the store's root and content of each file, without touching the disk."""
        return self._read(self._store_archive, "store")

    def tier_files(self) -> Iterator[tuple[str, bytes]]:
        """Path below the tier's root and content of each file, without touching the disk."""
        return self._read("tier.tar.gz", "tier")

    @property
    def _store_archive(self) -> str:
        return "local.tar.gz" if self.name.startswith("tiered/") else "store.tar.gz"

    def _unpack(self, archive: str, root: Path, prefix: str) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        with tarfile.open(self.directory / archive) as tar:
            for member in tar:
                member.name = _below(member.name, prefix)
                if member.name:
                    tar.extract(member, root, filter="data")
        return root

    def _read(self, archive: str, prefix: str) -> Iterator[tuple[str, bytes]]:
        with tarfile.open(self.directory / archive) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield _below(member.name, prefix), stream.read()


def _below(name: str, prefix: str) -> str:
    """Some archives hold the root's content, some the root itself."""
    return "" if name == prefix else name.removeprefix(f"{prefix}/")


def golden_case(name: str) -> GoldenCase:
    """The case of that name. Raises `LookupError` with the names there are."""
    if not (GOLDEN / name / "case.json").exists():
        raise LookupError(f"no golden case {name!r}; there are {', '.join(golden_names())}")
    return GoldenCase(name)


def golden_names(family: str = "") -> list[str]:
    """Names of all cases, or of one family: `local`, `tiered`, `broker`."""
    names = (path.parent.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("case.json"))
    return sorted(name for name in names if name == family or not family or name.startswith(f"{family}/"))
