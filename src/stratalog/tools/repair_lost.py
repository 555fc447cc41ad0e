"""What can be restored of a damaged log, and which messages are lost, from the evidence there is.

First the records that contradict their queues, then those that stand in damaged ranges: each is restored where a unit,
a hole among its neighbours or the record's own fields say what it was. What is left of the ranges is lost: messages
that units still lead to, heads without their bodies, offsets missing between neighbours.

Work is linear in the bytes of the log and of the damage: what is tried on a range reads it a few times at most.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from stratalog.errors import CorruptData
from stratalog.layout.light import (
    LIGHT_QUEUE_ID,
    Place,
    allows_light,
    holds_nearly,
    is_light,
    is_sent_to,
    light_places,
)
from stratalog.layout.message import FIXED_SIZE_V1, HEAD, MESSAGE_SIZE_MIN, decode_record, queue_offset_limit
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, is_topic
from stratalog.layout.sysflag import KNOWN_MASK, enters_queue
from stratalog.store.queue_begin import QueueKey, says_twice
from stratalog.store.recovery import Damage
from stratalog.store.special_read import messages_in
from stratalog.tools.batches import with_right_flags
from stratalog.tools.evidence import Claim, Evidence, QueueEvidence, Row, read_record
from stratalog.tools.mending import claim_of, identified, restored, with_light_places
from stratalog.tools.repair_fill import LostMessage, gap_messages, in_log_order
from stratalog.tools.survey import MISSING_MAX, WILD

WRONG_BATCH = "BATCH_THAT_CONTRADICTS_ITSELF"
"""Reason of a damage: a batch whose flags or properties do not say what its body holds."""
WRONG_PLACEHOLDER = "PLACEHOLDER_IN_THE_WRONG_PLACE"
"""Reason of a damage: what an earlier repair made says of itself what cannot be."""
_TRIES = 8
"""How often a range's bytes may be read for what is tried on it."""
_TRIES_SIZE_MIN = 1 << 16
_SLOT_SIZE_MAX = 64 << 20
_NUMBER_BITS = 62

Read = Callable[[int, int], bytes]
"""Bytes of the log from a log offset on; fewer where the file ends."""


@dataclass(frozen=True, slots=True)
class Mend:
    """A record that is restored: its place and its bytes as they were put."""

    offset: int
    data: bytes
    claim: Claim
    is_damaged: bool
    """Whether it stands in a damaged range; else it is whole and in the wrong place of a queue."""


@dataclass(slots=True)
class Findings:
    """What to do about a log: records to restore, ranges to cover, and what was lost in each."""

    mends: list[Mend] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    lost: dict[Damage, list[LostMessage]] = field(default_factory=dict)
    displaced: list[Place] = field(default_factory=list)
    """Places in light queues that are lost though the message is not."""
    outcast_count: int = 0
    """Whole records that belong to no place which is known; they are covered."""
    scanned_size: int = 0


class Judge:
    """Decides from the evidence; call `decide` once."""

    def __init__(
        self, evidence: Evidence, damages: list[Damage], ranges: list[tuple[int, int, int]], read: Read, *,
        log_begin: int,
    ) -> None:  # fmt: skip
        """`damages` in order, the log's tail among them; `ranges` are their pieces in each file, with the bytes that
        are written there."""
        self._evidence, self._damages, self._ranges, self._log_begin = evidence, damages, ranges, log_begin
        self._set_aside_ranges = list[Damage]()
        self._read_log = read
        self._found = Findings()
        self._proposed: dict[QueueKey, dict[int, Mend]] = defaultdict(dict)
        self._heads: dict[int, Claim] = {}
        _drop_unlikely(evidence, self._damages[-1].begin)
        self._claimed = sorted(evidence.claims)
        self._led_by_unit = {
            (claim.key, claim.queue_offset): offset for offset, claims in evidence.claims.items() for claim in claims
        }  # fmt: skip
        self._topics = {topic for topic, _ in evidence.queues}

    def decide(self) -> Findings:
        evidence = self._evidence
        outcast = self._judge_records()
        for begin, end, written in self._ranges:
            self._walk(begin, end, written)
        self._accept()
        self._found.mends.sort(key=lambda mend: mend.offset)
        mended = {mend.offset for mend in self._found.mends}
        for _, (offset, size, *_) in outcast:
            if offset not in mended:
                self._set_aside(offset, size, WILD)
        damages = sorted([*self._damages, *self._set_aside_ranges], key=lambda damage: damage.begin)
        self._found.damages = list(_without(damages, self._found.mends))
        lost = Lost(evidence, self._found.damages, self._heads, self._log_begin, end=self._written_end())
        self._found.lost, self._found.displaced = lost.by_damage(), lost.displaced
        return self._found

    def _written_end(self) -> int:
        """The log offset after the last damaged byte, and the last record that is set aside."""
        ends = [end for _, end, _ in self._ranges]
        return max([*ends, *(one.end for one in self._set_aside_ranges)], default=0)

    def _read(self, offset: int, size: int) -> bytes:
        self._found.scanned_size += size
        return self._read_log(offset, size)

    def _set_aside(self, offset: int, size: int, reason: str) -> None:
        """Cover a whole record. Its places in light queues are lost with it."""
        is_message = not self._evidence.is_repaired(np.array([offset]))[0]
        self._set_aside_ranges.append(Damage(offset, offset + size, reason if is_message else WRONG_PLACEHOLDER))
        self._found.outcast_count += is_message
        record = read_record(self._read(offset, size))
        for name, number in light_places(record.topic, record.properties, offset)[0] if record else ():
            queue = self._evidence.queue(name, LIGHT_QUEUE_ID)
            places = np.flatnonzero(queue.offsets == offset).tolist()
            queue.remove(places)
            queue.lost_numbers += [(number, number + 1)] * len(places)

    # -- whole records -----------------------------------------------------------------------------------------------

    def _judge_records(self) -> list[tuple[QueueEvidence, Row]]:
        """Propose another place for each record that is outvoted; returns those that lost theirs."""
        claimed, doubted = np.array(self._claimed, np.int64), list[tuple[QueueEvidence, int]]()
        outcast, contested = list[tuple[QueueEvidence, Row]](), dict[int, Row]()
        contradicting = self._evidence.contradicting
        light: list[tuple[QueueEvidence, int, int]] = []
        for queue in list(self._evidence.queues.values()):
            second = self._second_topic(queue)
            if second >= 0 and (self._evidence.has_directory(queue.key) or not self._evidence.has_tree(queue)):
                raise self._refusal(queue, second)
            if second >= 0 or self._evidence.is_deleted(queue):  # what no queue leads to stays as it is
                continue
            places = queue.outvoted()
            by_units = not self._are_of_opening(queue, places)
            if not by_units:
                places = queue.outvoted(by_units=False)
            if not is_topic(queue.key[0]) or queue.key[1] < 0:  # no such queue can be
                places = np.flatnonzero(~queue.certain).tolist()
            if not is_light(queue.key[0]):
                outcast += [(queue, queue.row(at)) for at in places]
                for at, other in queue.contested(places, by_units=by_units).items():
                    contested[int(queue.offsets[at])] = queue.row(other)
            else:
                rivals = queue.contested(places, by_units=by_units)
                pairs = [(queue.row(at), queue.row(rivals[at]) if at in rivals else None) for at in places]
                pairs += [(queue.row(at), None) for at in self._misplaced(queue, places)]
                queue.remove(np.flatnonzero(np.isin(queue.offsets, [row[0] for row, _ in pairs])).tolist())
                light += [(queue, *self._settled_light(queue, *pair)[:2]) for pair in pairs]
                continue
            queue.remove(places)
        outcast = [(queue, self._settled(queue, row, contested)) for queue, row in outcast]
        for queue in self._evidence.queues.values():
            if is_light(queue.key[0]) or not len(queue.offsets):
                continue
            doubted += [(queue, at) for at in self._doubted(queue, claimed)]
            if queue.is_batch:
                doubted += [(queue, at) for at, offset in enumerate(queue.offsets.tolist()) if offset in contradicting]
        removed: dict[QueueKey, list[int]] = defaultdict(list)
        for queue, at in dict.fromkeys(doubted):
            if self._doubt(queue, at):
                removed[queue.key].append(at)
        for key, places in removed.items():
            queue = self._evidence.queues[key]
            end = int(queue.ends[places].max())
            queue.remove(places)
            if not len(queue.offsets):  # units for lost messages in front of them were made for these records
                queue.lost_numbers = [one for one in queue.lost_numbers if one[0] >= end]
        for queue, (offset, size, *_) in outcast:
            holes = None if offset in contested else queue  # nobody knows which of the two is wrong
            self._propose(offset, size, self._claims_at(offset, size), holes, is_damaged=False)
        for offset in [offset for offset in self._claimed if offset in self._evidence.hidden]:
            size = self._evidence.hidden[offset]
            claims = self._claims_at(offset, size)
            is_restored = self._propose(offset, size, claims, None, is_damaged=False)
            has_garbage = HEAD.unpack(self._read(offset, HEAD.size)).sys_flag & ~KNOWN_MASK
            if claims and has_garbage and not is_restored:
                self._set_aside(offset, size, WILD)
        for offset, size in self._evidence.hidden.items():  # it has a queue offset, which is 0 in what enters no queue
            data = self._read(offset, size)
            own = claim_of(decode_record(data, verify=False))
            room = self._evidence.queue(*own.key).room_at(offset)
            if offset not in self._evidence.claims and own.queue_offset > 0 and room == (own.queue_offset, own.end):
                self._propose(offset, size, [own], None, is_damaged=False)
        self._move_strays()
        for offset, claims in self._evidence.light_claims.items():
            claims[:] = [claim for claim in claims if not self._is_misplaced(offset, claim)]
            light += [(self._evidence.queue(*claim.key), offset, claim.size) for claim in claims]
        proposed = {offset: mend for mends in self._proposed.values() for offset, mend in mends.items()}
        given_up = {row[0] for _, row in outcast} - proposed.keys()
        self._restore_light([place for place in light if place[1] not in given_up], proposed)
        return outcast

    def _second_topic(self, queue: QueueEvidence) -> int:
        """Number of the record with which the messages of a queue begin again at 0, those of a topic that was deleted
        and created again, if no unit told them apart; -1 where they do not, or where that record or the one in front of
        it may have stood elsewhere."""
        begins = np.flatnonzero((queue.numbers == 0) & ~queue.repaired)
        if is_light(queue.key[0]):
            ways = np.array([self._is_sent_to(queue, at) for at in begins.tolist()], np.bool_)
            if ways.any() and not ways.all():  # each begins at 0, without a second topic
                begins = max(begins[ways], begins[~ways], key=len)
                begins = begins if len(begins) > 1 else begins[:0]
        last = int(begins[-1]) if begins.size else 0
        if not last or begins.size > 2:  # no single changed record begins three sequences
            return last or -1
        goes_on = last + 1 < len(queue.numbers) and queue.numbers[last + 1] == queue.ends[last]
        changed = [at for at, is_alone in ((last, not goes_on or last == 1), (0, last == 1)) if is_alone]
        return -1 if any(self._may_be_changed(queue, at) for at in changed) else last

    def _is_sent_to(self, light_queue: QueueEvidence, at: int) -> bool:
        offset, size, *_ = light_queue.row(at)
        record = read_record(self._read(offset, size))
        return record is not None and is_sent_to(light_queue.key[0], record.topic)

    def _refusal(self, queue: QueueEvidence, second: int) -> CorruptData:
        topic, queue_id = queue.key
        is_there = self._evidence.has_directory(queue.key)
        tree = BATCH_CONSUME_QUEUE if queue.is_batch else CONSUME_QUEUE
        step, older = "", self._evidence.older_file(queue, int(queue.offsets[second]))
        if older:
            step = f". If {older} is an older copy, remove it: repair then goes on"
        elif is_there:
            step = f". If that queue is not used any more, remove {tree}/{topic}/{queue_id}/: repair then goes on, and "
            step += "reports those messages until they expire"
        return CorruptData(
            f"the messages of {topic}/{queue_id} begin again at queue offset 0 at log offset "
            f"{int(queue.offsets[second]):,}, as those of a topic that was deleted and created again. Only the "
            "files of that queue tell which of them are to be served, and they are lost, damaged or another "
            f"queue's: restore them from a copy{step}"
        )

    def _may_be_changed(self, queue: QueueEvidence, at: int) -> bool:
        """Whether a record that says it is the first of its queue can have stood elsewhere: a unit leads to it, or
        there is a place without a record between others that it fits into."""
        offset, size, *_ = queue.row(at)
        by_offset = self._evidence.light_claims if is_light(queue.key[0]) else self._evidence.claims
        claims = [claim for claim in by_offset.get(offset, []) if claim.size == size]
        if any(claim.key == queue.key or self._takes(offset, claim) for claim in claims):
            return True
        if 0 < at < len(queue.numbers) - 1 and queue.numbers[at + 1] - queue.ends[at - 1] == (
            queue.ends[at] - queue.numbers[at]
        ):  # between its neighbours
            return True
        record = read_record(self._read(offset, size))
        found = self._from_holes(offset, claim_of(record)) if record else []
        return any(self._evidence.queue(*claim.key).room_at(offset)[1] is not None for claim in found)

    def _are_of_opening(self, queue: QueueEvidence, outvoted: list[int]) -> bool:
        """Whether the units of a queue were written after records were damaged, from what these say now: else one would
        lead to each of its records, but for the newest. (Before the first it has those of a topic that was deleted.)"""
        newest = int(queue.offsets[queue.supported][-1]) if queue.supported.any() else -1
        claims = self._evidence.light_claims if is_light(queue.key[0]) else self._evidence.claims
        return any(
            queue.units_begin < queue.offsets[at] < newest and not claims.get(int(queue.offsets[at])) for at in outvoted
        )

    def _misplaced(self, queue: QueueEvidence, outvoted: list[int]) -> list[int]:
        """Records of a light queue to which a unit leads at an offset that joins those of its neighbours, at least as
        well as the record's own; of those in front that are misplaced, too, the unit's offset counts."""
        found = dict[int, int]()
        for at in np.flatnonzero(~queue.supported & ~queue.certain).tolist():
            offset, _, number, _ = queue.row(at)
            low = found.get(at - 1, int(queue.ends[at - 1]) if at else -1 if self._log_begin else 0)
            high = int(queue.numbers[at + 1]) if at + 1 < len(queue.numbers) else -1
            joined = (low == number) + (number + 1 == high)
            led = [
                one.queue_offset for one in self._evidence.light_claims.get(offset, [])
                if one.key == queue.key
                and (low == one.queue_offset) + (one.queue_offset + 1 == high) >= max(joined, 1)
            ]  # fmt: skip
            led += [queue.appended[offset]] if offset in queue.appended else []
            if led and at not in outvoted:
                found[at] = led[0] + 1
        return [*found]

    def _settled(self, queue: QueueEvidence, outvoted: Row, contested: dict[int, Row]) -> Row:
        """Which of two records that claim one place is wrong: the one that fits one hole, if the other fits none, be
        it the one that was not outvoted. Where nothing tells, they stay `contested`."""
        kept = contested.get(outvoted[0])
        if kept is None:
            return outvoted
        is_outvoted = self._fits_a_hole(*outvoted[:2])
        queue.exchange(kept, outvoted)
        is_kept = self._fits_a_hole(*kept[:2])
        if is_kept and not is_outvoted:
            del contested[outvoted[0]]
            return kept
        queue.exchange(outvoted, kept)
        if is_outvoted and not is_kept:
            del contested[outvoted[0]]
        return outvoted

    @staticmethod
    def _settled_light(queue: QueueEvidence, outvoted: Row, kept: Row | None) -> Row:
        """The same in a light queue, where the one that is wrong is in front of the hole or behind it."""
        if kept:
            queue.exchange(kept, outvoted)
            low, high = queue.room_at(kept[0])
            if high == low + 1:
                return kept
            queue.exchange(outvoted, kept)
        return outvoted

    def _fits_a_hole(self, offset: int, size: int) -> bool:
        record = read_record(self._read(offset, size))
        return record is not None and len(self._from_holes(offset, claim_of(record))) == 1

    def _is_misplaced(self, offset: int, claim: Claim) -> bool:
        """Whether a unit of a light queue leads to a whole record that cannot have named it or, alone in its file, to
        one that fits in where it says."""
        if claim.queue_id == LIGHT_QUEUE_ID and self._evidence.begins.get(claim.key) == (claim.queue_offset, offset):
            return False
        record = read_record(self._read(offset, claim.size))
        is_doubtful = record is not None and record.commit_log_offset == offset and claim.trust[0] <= 0
        if record and is_doubtful and not holds_nearly(record.properties, claim.topic):
            return True
        record = record if claim.trust[0] < 0 else None
        own = (
            [(name, LIGHT_QUEUE_ID) for name, _ in light_places(record.topic, record.properties, offset)[0]]
            if record
            else []
        )
        return bool(own) and claim.key not in own and all(offset in self._evidence.queue(*key).offsets for key in own)

    def _restore_light(self, places: list[tuple[QueueEvidence, int, int]], proposed: dict[int, Mend]) -> None:
        """Restore the offsets in light queues that whole records lost: to those of their units, or of the only hole.
        Else a queue that is built again would take the wrong ones for its own. Records that are `proposed` for another
        place of their own queue are among them."""
        mends: dict[int, bytes] = {}
        by_record: dict[tuple[int, int], list[QueueEvidence]] = defaultdict(list)
        for queue, offset, size in dict.fromkeys(places):
            if offset not in queue.offsets:
                by_record[offset, size].append(queue)
        for (offset, size), queues in by_record.items():
            data = proposed[offset].data if offset in proposed else self._read(offset, size)
            numbers = {queue.key[0]: number for queue in queues for number in self._light_numbers(queue, offset, size)}
            own = self._sure_places(data, offset)
            is_sure = offset in proposed or any(offset in queue.appended for queue in queues)
            for chosen in (numbers, *({name: number} for name, number in numbers.items())):
                found = with_light_places(data, own | chosen) if chosen.items() - own.items() else None
                if found and (is_sure or self._is_in_place(offset, found)):
                    for name in self._places(data, offset).keys() - self._places(found, offset).keys() | chosen.keys():
                        queue = self._evidence.queue(name, LIGHT_QUEUE_ID)
                        queue.remove(np.flatnonzero(queue.offsets == offset).tolist())
                        queue.insert([(offset, size, chosen[name], chosen[name] + 1)] if name in chosen else [])
                    mends[offset] = data = found
                    own |= chosen
        for offset, data in mends.items():
            if mend := proposed.get(offset):
                self._proposed[mend.claim.key][offset] = replace(mend, data=data)
            elif record := read_record(data):
                self._found.mends.append(Mend(offset, data, claim_of(record), is_damaged=False))

    def _light_numbers(self, queue: QueueEvidence, offset: int, size: int) -> set[int]:
        """The offset of a record in a light queue, if that is known: by its units, or as it is the only one there."""
        low, high = queue.room_at(offset)
        numbers = {
            claim.queue_offset for claim in self._evidence.light_claims.get(offset, [])
            if claim.key == queue.key and claim.size == size and queue.takes(offset, claim)
        }  # fmt: skip
        numbers = numbers or ({low} if high == low + 1 else set())
        return numbers if len(numbers) == 1 else set()

    @staticmethod
    def _places(data: bytes, offset: int) -> dict[str, int]:
        record = read_record(data)
        return dict(light_places(record.topic, record.properties, offset)[0]) if record else {}

    def _sure_places(self, data: bytes, offset: int) -> dict[str, int]:
        """The places that a record names in light queues which led to it and have other messages, too."""
        found = {}
        for name, number in self._places(data, offset).items():
            queue = self._evidence.queue(name, LIGHT_QUEUE_ID)
            if len(queue.offsets) > 1 and queue.supported[queue.offsets == offset].any():
                found[name] = number
        return found

    def _is_in_place(self, offset: int, data: bytes) -> bool:
        """Whether the units of a record's own queue lead to it, if there are units."""
        record = read_record(data)
        if record is None:
            return False
        own = self._evidence.queue(*claim_of(record).key)
        at = np.flatnonzero(own.offsets == offset)
        return bool(at.size and (own.supported[at[0]] or not own.has_units))

    @staticmethod
    def _doubted(queue: QueueEvidence, claimed: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
        """Records that fit in though a unit of another place leads to them, too (opening after a crash gives one to
        each record that it finds); and batches after which messages are missing."""
        if len(claimed):
            at = np.minimum(np.searchsorted(claimed, queue.offsets), len(claimed) - 1)
            is_claimed = claimed[at] == queue.offsets
        else:
            is_claimed = np.zeros(len(queue.offsets), np.bool_)
        if queue.is_batch:
            is_claimed[:-1] |= ~queue.supported[:-1] & (queue.numbers[1:] > queue.ends[:-1])
        found: list[int] = np.flatnonzero(is_claimed & ~queue.certain).tolist()
        return found

    def _move_strays(self) -> None:
        """Propose for records that leave offsets out in front of them, though nothing is damaged there, the only hole
        of another queue that they fit into."""
        for queue in list(self._evidence.queues.values()):
            is_alone = len(queue.offsets) == 1
            for offset, size, number, end in [queue.row(at) for at in self._strays(queue)]:
                own = Claim(*queue.key, number, size, end - number if queue.is_batch else 0)
                if not self._gaps_at(offset, own):
                    continue
                found = [claim for claim in self._from_holes(offset, own) if claim.key != queue.key]
                if not is_alone or queue.has_units:  # more messages were lost in a larger hole; an end is none
                    rooms = [self._evidence.queue(*claim.key).room_at(offset) for claim in found]
                    found = [c for c, room in zip(found, rooms, strict=True) if room == (c.queue_offset, c.end)]
                if len(found) == 1 and self._propose(offset, size, found, None, is_damaged=False):
                    queue.remove(np.flatnonzero(queue.offsets == offset).tolist())
                    queue.lost_numbers = [] if is_alone else queue.lost_numbers

    def _strays(self, queue: QueueEvidence) -> list[int]:
        """Records without which no offset of their queue would be missing: one that is alone and does not begin its
        queue, and one that is ahead of all others, or of those around it, if no other one is restored between."""
        numbers, ends = queue.numbers, queue.ends
        if is_light(queue.key[0]):
            return []
        if len(numbers) == 1:
            has_own_units = queue.has_units and self._log_begin > 0 and not queue.lost_numbers  # else of an opening
            is_in_turn = numbers[0] in (0, queue.units_end)  # put first, or after a repair that kept the queue's end
            return [0] if not is_in_turn and not has_own_units and not queue.certain[0] else []
        restored_numbers = sorted(mend.claim.queue_offset for mend in self._proposed.get(queue.key, {}).values())
        ahead = np.flatnonzero((numbers[1:] > ends[:-1]) & ~queue.certain[1:]) + 1
        return [
            at for at in ahead.tolist()
            if numbers[at] != queue.units_end and (at + 1 == len(numbers) or numbers[at + 1] == ends[at - 1])
            and bisect_left(restored_numbers, ends[at - 1]) == bisect_left(restored_numbers, numbers[at])
        ]  # fmt: skip

    def _doubt(self, queue: QueueEvidence, at: int) -> bool:
        """Weigh a record that fits in against a unit that says otherwise: neighbours on both sides count. True when it
        loses its place: it is proposed for another, or given up."""
        offset, size, number, end = (int(column[at]) for column in (
            queue.offsets, queue.sizes, queue.numbers, queue.ends,
        ))  # fmt: skip
        low = int(queue.ends[at - 1]) if at else 0
        if not at and self._log_begin:  # what was in front may be removed
            low = queue.gone_end or -1
        high = int(queue.numbers[at + 1]) if at + 1 < len(queue.numbers) else None
        is_gone = number < queue.gone_end  # an expired message had its place
        votes = 0 if is_gone else (number == low) + (end == high)
        data = self._read(offset, size)
        is_sure = queue.is_batch and (record := read_record(data)) is not None and says_twice(record)
        claims, record = self._claims_at(offset, size), read_record(data) if queue.is_batch else None
        count = messages_in(record) if record else 0
        is_wrong = offset in self._evidence.contradicting
        if is_wrong and (right := with_right_flags(data)):
            own = claim_of(decode_record(right, verify=False))
            self._proposed[queue.key][offset] = Mend(offset, right, own, is_damaged=False)
            return True
        if is_wrong and count:
            claims = [claim for claim in claims if claim.batch_size == count]
            claims += [Claim(*queue.key, number, size, count)]
        begins_or_follows = number == low or low < 0 or not (number or self._evidence.has_directory(queue.key))
        is_free = number >= queue.units_end or bool(queue.supported[at])  # or an opening wrote its unit
        if begins_or_follows and high is None and is_free and not is_wrong:
            # Its place is free: another queue's unit that is alone in its file is rather a misplaced file's, unless
            # that queue goes on there and lacks this message.
            claims = [
                claim for claim in claims
                if claim.key == queue.key or claim.trust[0] >= 0
                or self._evidence.queue(*claim.key).room_at(offset)[1] == claim.end
            ]  # fmt: skip
        # Its unit counts more if another record is led to at its queue offset, or if the units do not go so far.
        led = self._led_by_unit.get((queue.key, number), offset)
        is_own_end = queue.is_batch and any((c.key, c.end) == (queue.key, queue.units_end) for c in claims)
        is_behind, is_refuted = number >= queue.units_end > 0 and not is_own_end, led != offset or is_gone
        is_alone = not queue.has_units and len(queue.offsets) == 1
        is_refuted |= is_alone and any(
            claim.queue_offset == number for claim in claims
        )  # its topic is wrong, or the id
        gaps, better = self._gaps_at(offset, Claim(*queue.key, number, size, end - number)), []
        for claim in claims:
            room = (low, high) if claim.key == queue.key else self._evidence.queue(*claim.key).room_at(offset)
            fits = room[0] <= claim.queue_offset and (room[1] is None or claim.end <= room[1])
            fits = fits and self._gaps_at(offset, claim) <= gaps
            against = votes + (is_sure and claim.key == queue.key and claim.queue_offset != number)
            against += is_behind and claim.key == queue.key and claim.queue_offset >= queue.units_end  # so is the claim
            is_less = is_refuted or is_behind
            if fits and (claim.queue_offset == room[0]) + (claim.end == room[1]) + is_wrong + is_less > against:
                better.append(claim)
        mend = self._mended(offset, data, better[0], is_damaged=False) if better else None
        if mend:
            self._proposed[mend.claim.key][offset] = mend
        elif is_wrong:
            self._set_aside(offset, size, WRONG_BATCH)
            self._heads[offset] = better[0] if better else Claim(*queue.key, number, size, end - number)
        return bool(mend) or is_wrong

    def _gaps_at(self, offset: int, claim: Claim) -> int:
        """On how many sides a record of that place would leave out offsets though nothing is damaged on the way to its
        neighbour there."""
        queue = self._evidence.queue(*claim.key)
        at = int(np.searchsorted(queue.offsets, offset))
        following = at + bool(at < len(queue.offsets) and queue.offsets[at] == offset)
        count = 0
        if at or not self._log_begin:
            low, begin = (int(queue.ends[at - 1]), int(queue.offsets[at - 1])) if at else (0, 0)
            count += claim.queue_offset > low and not self._is_damaged(begin, offset)
        if following < len(queue.offsets):
            high, end = int(queue.numbers[following]), int(queue.offsets[following])
            count += claim.end < high and not self._is_damaged(offset, end)
        return count

    def _is_damaged(self, begin: int, end: int) -> bool:
        """Whether a damaged range begins between two log offsets."""
        at = bisect_left(self._damages, begin, key=lambda damage: damage.begin)
        return at < len(self._damages) and self._damages[at].begin < end

    def _claims_at(self, offset: int, size: int | None = None) -> list[Claim]:
        found = self._evidence.claims.get(offset, [])
        return [claim for claim in found if size is None or claim.size == size]

    def _propose(
        self, offset: int, size: int, claims: Iterable[Claim], queue: QueueEvidence | None, *, is_damaged: bool
    ) -> bool:
        """Propose the place that units give a record, or else the only hole that it can have come from."""
        data = self._read(offset, size)
        if len(data) < size or not any(data):
            return False
        fitting = [claim for claim in claims if self._takes(offset, claim)]
        if not fitting and (record := read_record(data)) and queue is not None:
            fitting = self._from_holes(offset, claim_of(record))
            fitting = fitting if len(fitting) == 1 else []
        for claim in fitting:
            if mend := self._mended(offset, data, claim, is_damaged=is_damaged):
                self._proposed[claim.key][offset] = mend
                return True
        return False

    def _takes(self, offset: int, claim: Claim) -> bool:
        return claim.size >= FIXED_SIZE_V1 and self._evidence.queue(*claim.key).takes(offset, claim)

    @staticmethod
    def _mended(offset: int, data: bytes, claim: Claim, *, is_damaged: bool) -> Mend | None:
        found = restored(data, offset, claim)
        return Mend(offset, found, claim, is_damaged) if found else None

    def _from_holes(self, offset: int, own: Claim) -> list[Claim]:
        """Places that differ in one field: the only hole of its queue that it fits into; or one turned bit."""
        queues = self._evidence.queues
        low, high = self._evidence.queue(*own.key).room_at(offset)
        if high is not None and high - low == (own.batch_size or 1):
            return [Claim(own.topic, own.queue_id, low, own.size, own.batch_size)]
        found = [
            Claim(own.topic, own.queue_id, own.queue_offset ^ 1 << bit, own.size, own.batch_size)
            for bit in range(_NUMBER_BITS)
        ]
        others = [
            Claim(*key, own.queue_offset, own.size, own.batch_size) for key in queues
            if key[0] == own.topic and key[1] != own.queue_id
        ]  # fmt: skip
        near = [claim for claim in others if (claim.queue_id ^ own.queue_id).bit_count() == 1]
        found += near if any(self._fills(offset, claim) for claim in near) else others
        found += [
            Claim(topic, own.queue_id, own.queue_offset, own.size, own.batch_size)
            for topic in _one_bit_off(own.topic)
            if (topic, own.queue_id) in queues
        ]
        if not is_topic(own.topic):
            size = _stored_size(own.topic)
            alike = [key for key in queues if key[1] == own.queue_id and _stored_size(key[0]) == size]
            found += [Claim(*key, own.queue_offset, own.size, own.batch_size) for key in alike]
        return list(dict.fromkeys(claim for claim in found if self._fills(offset, claim)))

    def _fills(self, offset: int, claim: Claim) -> bool:
        queue = self._evidence.queue(*claim.key)
        low, high = queue.room_at(offset)
        if self._log_begin and high is not None and not np.any(queue.offsets < offset):
            low = max(low, high - (claim.end - claim.queue_offset))  # offsets of expired messages are no hole
        return low <= claim.queue_offset and (claim.end <= high if high is not None else claim.queue_offset == low)

    # -- damaged ranges ----------------------------------------------------------------------------------------------

    def _walk(self, begin: int, end: int, written: int) -> None:
        """Go through a damaged range from unit to unit, or from head to head, and restore what can be."""
        position, budget = begin, _TRIES * written + _TRIES_SIZE_MIN
        while end - position >= FIXED_SIZE_V1 and budget > 0:
            following = bisect_right(self._claimed, position)
            limit = min(end, self._claimed[following] if following < len(self._claimed) else end)
            before = self._found.scanned_size
            position = self._step(position, limit, end)
            budget -= self._found.scanned_size - before + HEAD.size

    def _step(self, position: int, limit: int, end: int) -> int:
        """Restore the record that begins there, if any; returns where to look next. Units lead on to `limit`."""
        for claim in self._claims_at(position):
            fits = position + claim.size <= end and claim.size <= _SLOT_SIZE_MAX
            if fits and self._propose(position, claim.size, [claim], None, is_damaged=True):
                return position + claim.size
        head = self._read(position, HEAD.size)
        if len(head) < HEAD.size or not any(head):
            return limit
        stored = int(HEAD.unpack(head).total_size)
        room = limit - position
        for size in dict.fromkeys((room, stored)):
            leaves_room = size == room or size <= room - FIXED_SIZE_V1
            if FIXED_SIZE_V1 <= size <= _SLOT_SIZE_MAX and leaves_room and self._restore_alone(position, size):
                return position + size
        if not FIXED_SIZE_V1 <= stored <= limit - position:
            return limit
        record = identified(self._read(position, stored), position) if stored <= _SLOT_SIZE_MAX else None
        if record is None:
            return position + stored
        own = claim_of(record)
        self._evidence.take_topic(own.topic)
        if self._is_likely(own) and self._is_near(position, own):
            self._heads[position] = own
        self._take_named(record.topic, record.properties, position, stored)
        return position + stored

    def _take_named(self, topic: bytes, properties: bytes, position: int, size: int) -> None:
        """Note the places in light queues that a damaged record names: its unit there counts more, and a queue of which
        nothing else is known counts only if no unit of a light queue leads to the record."""
        claims = self._evidence.light_claims.get(position, ())
        led = {claim.key for claim in claims if self._evidence.queue(*claim.key).takes(position, claim)}
        for name, number in light_places(topic, properties, position)[0]:
            key = name, LIGHT_QUEUE_ID
            if key not in led and (not led or self._evidence.is_known(key)):
                queue = self._evidence.queue(*key)
                if queue.takes(position, Claim(*key, number, size)):
                    queue.lost_numbers.append((number, number + 1))

    def _restore_alone(self, position: int, size: int) -> bool:
        """Restore a record that no unit leads to, if it fits in where it says it does, or into one hole."""
        data = self._read(position, size)
        found = restored(data, position, None) if len(data) == size else None
        record = read_record(found) if found else None
        if found is None or record is None:
            return False
        claim, known = claim_of(record), self._claims_at(position)
        self._evidence.take_topic(claim.topic)
        if not enters_queue(record.sys_flag):
            self._found.mends += [] if known else [Mend(position, found, claim, is_damaged=True)]
            return not known
        if not self._is_likely(claim) or (known and claim.key not in [other.key for other in known]):
            return False
        if self._takes(position, claim) and self._is_near(position, claim):
            self._proposed[claim.key][position] = Mend(position, found, claim, is_damaged=True)
            return True
        fitting = self._from_holes(position, claim)
        return len(fitting) == 1 and self._propose(position, size, fitting, None, is_damaged=True)

    def _is_likely(self, claim: Claim) -> bool:
        """Whether a topic is known, or can be one of which nothing else is left: it is no damaged name of another."""
        if claim.topic in self._topics:
            return True
        return is_topic(claim.topic) and not any(name in self._topics for name in _one_bit_off(claim.topic))

    def _is_near(self, offset: int, claim: Claim) -> bool:
        """Whether no more messages can be missing before it than the log has room for."""
        low, high = self._evidence.queue(*claim.key).room_at(offset)
        return high is not None or claim.queue_offset - low <= max(0, offset - self._log_begin) // MESSAGE_SIZE_MIN

    # -- acceptance --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Take the proposals that fit in with each other."""
        for key, mends in self._proposed.items():
            queue = self._evidence.queue(*key)
            queue.insert([(m.offset, len(m.data), m.claim.queue_offset, m.claim.end) for m in mends.values()])
            places = queue.outvoted()
            refused = {int(queue.offsets[at]) for at in places}
            queue.remove(places)
            accepted = [mend for mend in mends.values() if mend.offset not in refused]
            self._found.mends += accepted
            if not queue.is_batch:
                self._take_light(accepted)

    def _take_light(self, mends: list[Mend]) -> None:
        """Let restored records stand in the light queues that they name."""
        found: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for mend in mends:
            record = read_record(mend.data)
            for name, number in light_places(record.topic, record.properties, mend.offset)[0] if record else ():
                queue = self._evidence.queue(name, LIGHT_QUEUE_ID)
                claim = Claim(*queue.key, number, len(mend.data))
                is_new = mend.is_damaged or mend.offset in self._evidence.hidden
                if is_new and queue.takes(mend.offset, claim):
                    found[name].append((mend.offset, len(mend.data), number, number + 1))
        for name, places in found.items():
            queue = self._evidence.queue(name, LIGHT_QUEUE_ID)
            queue.insert(places)
            queue.remove(queue.outvoted())


def _drop_unlikely(evidence: Evidence, log_end: int) -> None:
    """Forget what units say that no log can have held, or that no reader would take for a queue offset."""
    for claims in (evidence.claims, evidence.light_claims):
        for offset in list(claims):
            limit = queue_offset_limit(min(offset, log_end))
            claims[offset] = [
                claim for claim in claims[offset]
                if claim.end <= limit and FIXED_SIZE_V1 <= claim.size <= _SLOT_SIZE_MAX
                and offset + claim.size <= log_end + MISSING_MAX * evidence.file_size
            ]  # fmt: skip
            if not claims[offset]:
                del claims[offset]
    _drop_unjoined(evidence, log_end)


def _drop_unjoined(evidence: Evidence, log_end: int) -> None:
    """Forget what a batch queue's unit says of a message after the log's end where it joins no other unit and no
    record: a damaged one may say any queue offset. A gap of one batch may be a unit that was damaged."""
    begins = {(claim.key, claim.queue_offset) for claims in evidence.claims.values() for claim in claims}
    ends, largest = dict[QueueKey, int](), dict[QueueKey, int]()
    for key, queue in evidence.queues.items():
        if queue.is_batch:
            known = (*queue.ends.tolist()[-1:], *(end for _, end in queue.lost_numbers))
            ends[key] = max(known, default=queue.gone_end)
            largest[key] = int((queue.ends - queue.numbers).max(initial=1))
    for offset in sorted(evidence.claims) if ends else ():
        for claim in list(evidence.claims[offset]):
            key, end = claim.key, ends.get(claim.key)
            if end is None or not evidence.queues[key].takes(offset, claim):
                continue
            is_joined = not end or claim.queue_offset - end <= largest[key] or (key, claim.end) in begins
            if offset < log_end or is_joined:
                ends[key] = max(end, claim.end)
            else:
                evidence.claims[offset].remove(claim)


def _stored_size(topic: str) -> int:
    return len(topic.encode("utf-8", "surrogateescape"))


def _one_bit_off(topic: str) -> Iterator[str]:
    stored = topic.encode("utf-8", "surrogateescape")
    for at in range(len(stored)):
        for bit in range(8):
            changed = bytearray(stored)
            changed[at] ^= 1 << bit
            yield bytes(changed).decode("utf-8", "surrogateescape")


def _without(damages: Iterable[Damage], mends: list[Mend]) -> Iterator[Damage]:
    """What the restored records leave of the ranges."""
    starts = [mend.offset for mend in mends]
    for damage in damages:
        begin = damage.begin
        for mend in mends[bisect_left(starts, damage.begin) : bisect_left(starts, damage.end)]:
            if mend.offset > begin:
                yield Damage(begin, mend.offset, damage.reason)
            begin = mend.offset + len(mend.data)
        if begin < damage.end:
            yield Damage(begin, damage.end, damage.reason)


class Lost:
    """Which messages stood in the ranges that are left: by units, by heads, by offsets that neighbours leave out."""

    def __init__(
        self, evidence: Evidence, damages: list[Damage], heads: dict[int, Claim], log_begin: int, *, end: int
    ) -> None:  # fmt: skip
        """`end` is the log offset after the last damaged byte."""
        self._evidence, self._damages, self._log_begin, self._written_end = evidence, damages, log_begin, end
        self._begins = [damage.begin for damage in damages]
        self._room = [(damage.end - damage.begin) for damage in damages]
        self._rooms = np.concatenate(([0], np.cumsum(np.array(self._room, np.float64))))
        self._by_place: dict[int, Claim] = dict(heads)
        self._found: dict[Damage, list[LostMessage]] = {damage: [] for damage in damages}
        self.displaced: list[Place] = []
        """Places in light queues whose record is there and no longer names them."""
        self._records: dict[Damage, list[list[Place]]] = {damage: [] for damage in damages}
        """Places in light queues of each record of which nothing else is known, in the order of the log."""
        self._places: dict[Damage, dict[str, list[int]]] = {damage: defaultdict(list) for damage in damages}
        """Offsets in light queues of which no record is known."""
        self._taken: dict[QueueKey, list[tuple[int, int, int]]] = defaultdict(list)
        """Offsets [first, end) whose records are known to have stood in a range, and its number; in order."""
        self._counts: dict[QueueKey, list[int]] = defaultdict(lambda: [0])
        """By queue, how many messages the first of those are, for each number of them."""

    def by_damage(self) -> dict[Damage, list[LostMessage]]:
        """In each range, in the order of the log as far as it is known."""
        for offset, claims in self._evidence.claims.items():
            fitting = [c for c in claims if self._evidence.queue(*c.key).takes(offset, c)]
            if fitting and self._at(offset) is not None:
                self._by_place[offset] = fitting[0]
        for offset in sorted(self._by_place):
            if not self._take_place(offset, self._by_place[offset]):
                del self._by_place[offset]
        keys = sorted(self._evidence.queues)
        for key in keys:
            if not is_light(key[0]):
                self._take_holes(self._evidence.queues[key])
        for offset, claims in sorted(self._evidence.light_claims.items()):
            damage = self._at(offset)
            claims = [c for c in claims if self._evidence.queue(*c.key).takes(offset, c)]
            places = [(c.topic, c.queue_offset) for c in claims]
            if damage is None:
                self.displaced += places
            elif places and offset not in self._by_place:
                self._records[self._damages[damage]].append(places)
            for claim in claims:
                self._taken[claim.key].append((claim.queue_offset, claim.end, damage or 0))
        for key in filter(lambda key: is_light(key[0]), keys):
            self._take_holes(self._evidence.queues[key])
        for one, found in self._found.items():
            self._found[one] = _with_places(found, self._records[one], self._places[one])
        return self._found

    def _at(self, offset: int) -> int | None:
        """Number of the range that a log offset lies in."""
        at = bisect_right(self._begins, offset) - 1
        return at if at >= 0 and offset < self._damages[at].end else None

    def _take_place(self, offset: int, claim: Claim) -> bool:
        """Note a lost message; whether it fits in with those before it."""
        at, key = self._at(offset), claim.key
        queue = self._evidence.queue(*key)
        taken = self._taken[key]
        if at is None or not queue.takes(offset, claim) or (taken and claim.queue_offset < taken[-1][1]):
            return False
        if not self._is_near(queue, offset, claim.queue_offset, taken):
            return False
        taken.append((claim.queue_offset, claim.end, at))
        self._counts[key].append(self._counts[key][-1] + claim.end - claim.queue_offset)
        size = (claim.batch_size or 1) if queue.is_batch else 0
        places = [
            (topic, number) for topic, number in self._evidence.places_at(offset)
            if self._evidence.queue(topic, LIGHT_QUEUE_ID).takes(offset, Claim(topic, LIGHT_QUEUE_ID, number, 0))
        ]  # fmt: skip
        message = LostMessage(*key, claim.queue_offset, size, tuple(places))
        self._found[self._damages[at]].append(message)
        self._room[at] -= claim.size
        return True

    def _is_near(self, queue: QueueEvidence, offset: int, number: int, taken: list[tuple[int, int, int]]) -> bool:
        """Whether the messages that are missing before a lost one have room in the damage in front of it. A queue may
        begin at any offset, but only units say so."""
        before = int(np.searchsorted(queue.offsets, offset))
        low, begin = (int(queue.ends[before - 1]), int(queue.offsets[before - 1])) if before else (0, self._log_begin)
        if not before and (queue.has_units or self._log_begin):
            return True
        first, at = bisect_left(self._begins, begin), bisect_right(self._begins, offset) - 1
        room = self._rooms[at] - self._rooms[first] + offset - self._begins[at]
        counts = self._counts[queue.key]
        missing = number - low - (counts[-1] - counts[bisect_left(taken, (low, 0, 0))])
        return bool(missing * (MESSAGE_SIZE_MIN if queue.is_batch else FIXED_SIZE_V1) <= room)

    def _take_holes(self, queue: QueueEvidence) -> None:
        """Offsets that no record has, between records and in front of them, and after them up to the last one that is
        known to have been given."""
        numbers, ends, offsets = queue.numbers, queue.ends, queue.offsets
        taken, log_end = self._taken[queue.key], self._damages[-1].end if self._damages else 0
        if len(numbers):
            begin, low = self._evidence.begins.get(queue.key), 0
            first = begin.commit_log_offset if begin and not begin.queue_offset else 0  # else more was lost before it
            if self._log_begin:  # what was in front expired, but for what units of lost messages tell
                low, first = min((n for n, _ in queue.lost_numbers if n < numbers[0]), default=int(numbers[0])), 0
            self._take_hole(queue, low, int(numbers[0]), first, int(offsets[0]))
        for at in (np.flatnonzero(numbers[1:] > ends[:-1]) + 1).tolist():
            self._take_hole(queue, int(ends[at - 1]), int(numbers[at]), int(offsets[at - 1]), int(offsets[at]))
        given = [end for _, end, _ in taken]
        newest = int(offsets[-1]) if len(offsets) else self._log_begin
        if newest < self._written_end:  # else what units of lost messages say is not new
            given += [end for _, end in queue.lost_numbers]
        if len(ends) or not self._log_begin:
            first = int(ends[-1]) if len(ends) else 0
        else:
            first = min([*(n for n, _, _ in taken), *(n for n, _ in queue.lost_numbers)], default=-1)
        if given and max(given) > first >= 0:  # else nothing tells a message that was lost from one that expired
            self._take_hole(queue, first, max(given), newest, log_end)

    def _take_hole(self, queue: QueueEvidence, low: int, high: int, begin: int, end: int) -> None:
        """Messages [low, high), whose records stood between two log offsets: in the ranges there, where there is
        room. Those whose place is known divide them."""
        first, last = bisect_left(self._begins, begin), bisect_left(self._begins, end)
        first -= self._at(begin) == first - 1  # a queue may begin within a range
        taken = self._taken[queue.key]
        at = bisect_left(taken, (low, 0, 0))
        low = max(low, min(taken[at - 1][1], high)) if at else low
        inside = taken[at : bisect_left(taken, (high, 0, 0))]
        missing = high - low - sum(stop - number for number, stop, _ in inside)
        room = self._rooms[last] - self._rooms[first] if first < last else 0
        if not missing or missing * (MESSAGE_SIZE_MIN if queue.is_batch else FIXED_SIZE_V1) > room:
            return
        at = first
        for number, stop, damage in (*inside, (high, high, last - 1)):
            for message in self._messages(queue, low, number):
                while at < damage and self._room[at] < message.room:
                    at += 1
                self._place(self._damages[at], message)
                self._room[at] -= message.room
            low, at = stop, max(at, damage)

    @staticmethod
    def _messages(queue: QueueEvidence, low: int, high: int) -> list[LostMessage]:
        if queue.is_batch:
            return gap_messages(*queue.key, low, high)
        return [LostMessage(*queue.key, number) for number in range(low, high)]

    def _place(self, damage: Damage, message: LostMessage) -> None:
        if is_light(message.topic):
            self._places[damage][message.topic].append(message.queue_offset)
        else:
            self._found[damage].append(message)


def _with_places(
    lost: list[LostMessage], records: list[list[Place]], places: dict[str, list[int]]
) -> list[LostMessage]:  # fmt: skip
    """Give lost messages the places in light queues of which no more is known: all of a record to a message without
    any, others one by one. Where none can take them so that all queues keep their order, a message of the light queue
    alone has them."""
    if not (records or places):
        return lost
    found = in_log_order(lost)
    plain = [at for at, one in enumerate(found) if _may_stand_in_light_queues(one)]
    left = _give(found, records, [at for at in plain if not found[at].places], _numbered(found))
    known = _numbered(found)
    for name, numbers in places.items():
        left += _give(found, [[(name, number)] for number in sorted(numbers)], plain, known)
    return [*found, *(LostMessage(name, LIGHT_QUEUE_ID, number) for name, number in left)]


def _numbered(found: list[LostMessage]) -> dict[str, list[tuple[int, int]]]:
    """By light queue: the offset there, and the number in the list, of each message that has a place in it."""
    known: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at, message in enumerate(found):
        for topic, queue_id, number, _ in message.all_places:
            if queue_id == LIGHT_QUEUE_ID and is_light(topic):
                known[topic].append((number, at))
    return known


def _give(
    found: list[LostMessage], records: list[list[Place]], free: list[int], known: dict[str, list[tuple[int, int]]]
) -> list[Place]:  # fmt: skip
    """Give the places of each record, in order, to a `free` message: the first one after that of the record before, and
    between those that are next to it in its light queues, of which the places are `known`. Returns what is left."""
    left, begin = list[Place](), 0
    for places in records:
        low, high = begin, len(found)
        for name, number in places:
            following = bisect_left(known[name], (number, 0))
            low = max([low, *(at + 1 for _, at in known[name][max(0, following - 1) : following])])
            high = min([high, *(at for _, at in known[name][following : following + 1])])
        chosen = bisect_left(free, low)
        if chosen == len(free) or free[chosen] >= high:
            left += places
            continue
        at = free[chosen]
        found[at], begin = replace(found[at], places=(*found[at].places, *places)), at + 1
    return left


def _may_stand_in_light_queues(message: LostMessage) -> bool:
    return not is_light(message.topic) and not message.batch_size and allows_light(message.topic)
