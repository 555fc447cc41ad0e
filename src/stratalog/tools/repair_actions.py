"""The steps of a repair, as its plan lists them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stratalog.errors import counted
from stratalog.tools.repair_fill import Cover, LostMessage
from stratalog.tools.verify_files import BACKUP

ActionKind = Literal[
    "extend", "create", "trim", "away", "mend", "cover", "cut", "drop", "config", "aside", "remove", "rebuild", "enter"
]  # fmt: skip
CHANGES_LOG = frozenset({"extend", "create", "trim", "away", "mend", "cover", "cut", "drop"})


@dataclass(frozen=True, slots=True)
class Action:
    """One step. `path` is relative to the store; `position` and `size` are bytes of that file."""

    kind: ActionKind
    path: str
    position: int = 0
    size: int = 0
    reason: str = ""
    lost: tuple[LostMessage, ...] = ()
    """Messages that are known to have stood there, or come there: those that fit get placeholders."""
    cover: Cover | None = None
    data: bytes = b""
    """Of `mend`: the record as it was put."""

    @property
    def placeholder_count(self) -> int:
        """How many messages get placeholders."""
        return len(self.cover.fitting(self.lost)) if self.cover else 0


def lost_json(message: LostMessage) -> dict[str, Any]:
    """A lost message as reports and the files in quarantine name it. A batch has a count, a message that stood in light
    queues their names and its offsets there."""
    found: dict[str, Any] = {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset
    }  # fmt: skip
    if message.batch_size:
        found["count"] = message.batch_size
    if message.places:
        found["lightQueues"] = dict(message.places)
    return found


def described(action: Action) -> str:
    """What a step does, in a few words."""
    place = f"{action.path} at byte {action.position:,}"
    match action.kind:
        case "extend":
            return f"extend {action.path} from {counted(action.position, 'byte')} by {counted(action.size, 'zero')}"
        case "create":
            return f"make {action.path} again, empty ({counted(action.size, 'byte')})"
        case "trim":
            return f"set {counted(action.size, 'byte')} of {place} aside and cut them off: {action.reason}"
        case "away":
            return f"move {action.path} away: {action.reason}"
        case "mend":
            return f"set {counted(action.size, 'byte')} of {place} aside and restore the record there: {action.reason}"
        case "cover":
            return f"set {counted(action.size, 'byte')} of {place} aside and cover them with placeholders"
        case "cut":
            noun = "placeholder" if action.placeholder_count == 1 else "placeholders"
            kept = f"{action.placeholder_count:,} {noun} to keep the offsets of what is lost"
            if not action.size:
                return f"append {kept} ({place})"
            aside = f"set {counted(action.size, 'byte')} after the log's end ({place}) aside and zero them"
            return f"{aside}; write {kept}" if action.lost else aside
        case "drop":
            return f"set {action.path} aside: it lies after the log's end"
        case "config":
            return f"restore {action.path} from {Path(action.path).name}{BACKUP}"
        case "aside":
            return f"set {action.path} aside, which cannot be read: {action.reason}"
        case "enter":
            return f"add topics of type BatchCQ that have queues to {action.path}: {action.reason}"
        case "remove":
            return f"remove {action.path}: {action.reason}"
        case _:
            return "rebuild queues, index and checkpoint from the log"
