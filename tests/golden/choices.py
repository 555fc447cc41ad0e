"""Where we read a golden store otherwise than RocketMQ does, and why. Every other case is read exactly as it does."""

from dataclasses import dataclass

DAMAGED_IN_THE_MIDDLE = "whole records behind a damaged one are served: RocketMQ ends the log there and loses them"
DAMAGED_IS_PASSED_OVER = "a message whose CRC does not hold is not served: RocketMQ serves it after a clean stop"
STALE_RECORD = "a record that says it stands elsewhere is none of this log: RocketMQ takes it in, and no queue shows it"
INDEX_OF_WHAT_IS_THERE = "the index forgets a record that was cut off with the log's tail: RocketMQ keeps its names"
NAMES_ONCE = "a record is named once in an index that is built again: RocketMQ indexes the last ones a second time"
INDEX_BUILT_AGAIN = "a missing index is built again from the log: RocketMQ leaves it away after a clean stop"
OFFSETS_STAY = "a message keeps the queue offset in its record: RocketMQ gives later ones the offsets of lost units"
NO_LOG = "queues without a log are refused with the next step: RocketMQ begins at offset 0 again and mixes both"
LOADS = "a record that RocketMQ cannot dispatch is in the log and in its own queue: RocketMQ does not load the store"


@dataclass(frozen=True)
class Choice:
    """What differs in one case. Log offsets in bytes."""

    why: str
    end_offset: int | None = None
    """End of the log, where it is another."""
    damaged: frozenset[int] = frozenset()
    """Records that opening reports and that are not served: the damaged ones. Those around them that RocketMQ loses
    are."""
    keeps_lost: bool = False
    """Whether the rest of what RocketMQ loses from the log is there."""
    is_refused: bool = False
    """Whether opening raises, with the next step in the message."""
    index_differs: bool = False
    keys_differ: bool = False


def stepped_over(damaged: int) -> Choice:
    return Choice(DAMAGED_IN_THE_MIDDLE, 82968, frozenset({damaged}), keeps_lost=True, index_differs=True)


CHOICES = {
    "flip-body-abort": stepped_over(43032),
    "flip-body-abort-5.3.3": stepped_over(43032),
    "size-field-abort": stepped_over(43865),
    "magic-field-abort": stepped_over(43865),
    "flip-body-clean": Choice(DAMAGED_IS_PASSED_OVER, damaged=frozenset({43032})),
    "flip-body-clean-5.3.3": Choice(DAMAGED_IS_PASSED_OVER, damaged=frozenset({43032})),
    "flip-body-late-clean": Choice(DAMAGED_IN_THE_MIDDLE, 82968, frozenset({78560}), keeps_lost=True),
    "stale-abort": Choice(STALE_RECORD, 82968),
    "torn-cut-clean": Choice(INDEX_OF_WHAT_IS_THERE, index_differs=True),
    "torn-cut-clean-5.3.3": Choice(INDEX_OF_WHAT_IS_THERE, index_differs=True),
    "checkpoint-ahead-abort": Choice(NAMES_ONCE, index_differs=True),
    "queues-cut-clean": Choice(OFFSETS_STAY, index_differs=True),
    "no-index-clean": Choice(INDEX_BUILT_AGAIN, index_differs=True, keys_differ=True),
    "no-log": Choice(NO_LOG, is_refused=True),
    "lmq-poison": Choice(LOADS, 2514, keeps_lost=True, index_differs=True),
}


def choice_of(name: str) -> Choice:
    """The choice for a case, or one that differs in nothing."""
    return CHOICES.get(name.removeprefix("local/"), Choice(""))
