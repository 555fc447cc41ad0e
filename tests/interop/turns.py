"""One store that both sides open in turn, with features that are switched on by settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop.drafts import Ledger, Reading
from interop.rocketmq import RocketMQ
from interop.shared import LogPrefix
from interop.views import Sending, Sizes, java_reading, java_settings, open_ours, put_by_java, random_sizes
from stratalog.store.message_store import MessageStore


class Turns:
    """A store that both sides open in turn: nothing is cut, and what one reads the other reads."""

    def __init__(
        self, directory: Path, rocketmq: RocketMQ, *, of_java: Mapping[str, object] | None = None, **settings: Any
    ) -> None:
        self.directory = directory
        self.rocketmq = rocketmq
        self._of_java = of_java or {}
        self.settings: Sizes = random_sizes(f"{rocketmq.release} {sorted(settings)}") | settings
        self.ledger = Ledger()

    def open_ours(self, **more: Any) -> MessageStore:
        prefix = LogPrefix(self.directory)
        store = open_ours(self.directory, self.settings, self.rocketmq, **more)
        prefix.check(store.log.end_offset)
        return store

    def open_theirs(self, **more: Any) -> Reading:
        prefix = LogPrefix(self.directory)
        asked = {"directory": str(self.directory), "settings": java_settings(self.settings, **self._of_java)}
        opened = self.rocketmq.ask("open", **asked, **more)
        assert opened["loaded"]
        prefix.check(opened["end_offset"])
        return java_reading(self.rocketmq)

    def put_by_java(self, sendings: list[Sending], *, halted: bool) -> None:
        put_by_java(self.rocketmq, sendings, self.ledger, **({"halt_after": len(sendings) - 1} if halted else {}))
        if not halted:
            self.rocketmq.ask("close")

    def digests(self, part: str) -> dict[str, bytes]:
        """What stands in the files of one kind: written units, whoever wrote them."""
        files = sorted(path for path in (self.directory / part).rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes().rstrip(b"\0") for path in files}
