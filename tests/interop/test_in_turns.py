"""Both sides take turns at one store, stopping cleanly, killed or halted: nothing acknowledged is lost, ever.

`STRATALOG_SEED=7 pytest tests/interop/test_in_turns.py` plays other rounds; a failed test prints the seed it played.
"""

import os
import random

import pytest

from interop.rocketmq import RocketMQ
from interop.shared import Share, Shared
from stratalog.config.settings import Release
from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, INDEX, offset_name

pytestmark = pytest.mark.one_in(2)

SEED = os.environ.get("STRATALOG_SEED", "1")
ROUND_COUNT = 5
FLUSH = ("async", "sync")
STOPS = ("", "killed", "halted")
COMPATIBILITY: tuple[Release, ...] = ("5.3", "5.5")


def play(shared: Shared, sides: list[RocketMQ], chance: random.Random) -> None:
    """Rounds of RocketMQ and us in turn, each comparing everything with what is known, then putting more."""
    for number in range(ROUND_COUNT):
        peer = sides[number % len(sides)]
        release = peer.compatibility if len(sides) == 1 else chance.choice(COMPATIBILITY)
        shared.flush = chance.choice(FLUSH)
        ours, theirs = chance.choice(STOPS[:2]), chance.choice(STOPS)
        print(f"round {number}: we ({release}) {ours or 'close'}, {peer.release} {theirs or 'closes'}, {shared.flush}")  # noqa: T201
        shared.ours(release, 2 * number, chance.randrange(20, 250), stop=ours)
        shared.theirs(peer, 2 * number + 1, chance.randrange(20, 150), stop=theirs)
    shared.ours(release, 2 * ROUND_COUNT, 10)


def test_rounds_with_one_release_lose_nothing(rocketmq: RocketMQ, share: Share) -> None:
    chance = named_chance(f"{rocketmq.release}")
    play(share(chance), [rocketmq], chance)


def test_rounds_with_both_releases_lose_nothing(releases: dict[str, RocketMQ], share: Share) -> None:
    """An upgrade, a downgrade and back, with us in between."""
    chance = named_chance("both releases")
    play(share(chance), list(releases.values()), chance)


def test_every_key_is_found_after_rocketmq_went_on_with_what_our_kill_left(rocketmq: RocketMQ, share: Share) -> None:
    """We close, are killed, RocketMQ opens, puts and closes: the chains of its index are broken, ours are not."""
    shared = share(named_chance(f"{rocketmq.release} keys after a kill"))
    shared.flush = "async"
    shared.ours(rocketmq.compatibility, 1, 100)
    shared.ours(rocketmq.compatibility, 2, 200, stop="killed")
    shared.theirs(rocketmq, 3, 100)
    with shared.open_ours(rocketmq.compatibility, mode="r") as store:
        every = [message for topic, queue_id in store.queues() for message in store.queue(topic, queue_id).read()]
        named = [(message, key) for message in every for key in message.keys]
        assert len(named) > 200
        for message, key in named:
            hits = store.query(message.topic, key=key, limit=None)
            assert message.commit_log_offset in {hit.commit_log_offset for hit in hits}
    shared.ours(rocketmq.compatibility, 4, 10)


def named_chance(name: str) -> random.Random:
    print(f"STRATALOG_SEED={SEED} ({name})")  # noqa: T201
    return random.Random(f"{SEED} {name}")


def test_a_queue_file_that_rocketmq_had_no_time_to_extend_is_nothing(rocketmq: RocketMQ, share: Share) -> None:
    """It creates a file empty and gives it its length afterwards: a halt in between leaves one without bytes."""
    shared = share(named_chance(f"{rocketmq.release} empty file"))
    shared.theirs(
        rocketmq, 1, 50
    )  # closed, so that there are queues: it may be halted before it has dispatched anything
    shared.theirs(rocketmq, 2, 100, stop="halted")
    queue = next((shared.directory / CONSUME_QUEUE).rglob(offset_name(0))).parent
    newest = max(int(path.name) for path in queue.iterdir())
    (queue / offset_name(newest + shared.sizes["mapped_file_size_consume_queue"])).touch()
    shared.ours(rocketmq.compatibility, 3, 300)
    shared.theirs(rocketmq, 4, 20)


@pytest.mark.one_in(36)
@pytest.mark.parametrize("part", [COMMIT_LOG, CONSUME_QUEUE, INDEX])
def test_a_file_that_we_had_no_time_to_make_is_nothing(rocketmq: RocketMQ, part: str, share: Share) -> None:
    shared = share(named_chance(f"{rocketmq.release} unfinished {part}"))
    shared.crashed = True
    shared.put_until_killed(rocketmq.compatibility, 1, 1000, die_in=part)
    shared.theirs(rocketmq, 2, 20)
    shared.ours(rocketmq.compatibility, 3, 50)
