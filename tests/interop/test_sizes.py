"""Stores with small files: a broker that is given the same sizes uses them, and passes over our note of them."""

import stratalog
from interop.rocketmq import RocketMQ
from interop.shared import Share
from stratalog.layout import names
from stratalog.store.sizes import SMALL_FILES


def test_rocketmq_uses_a_small_store_with_its_sizes(rocketmq: RocketMQ, share: Share) -> None:
    shared = share(f"{rocketmq.release} small")
    shared.sizes = dict(SMALL_FILES)
    stratalog.open(shared.directory, small=True, compatibility=rocketmq.compatibility).close()
    note = (shared.directory / names.SIZES).read_bytes()
    shared.ours(rocketmq.compatibility, 1, 50)
    shared.theirs(rocketmq, 2, 50)
    shared.ours(rocketmq.compatibility, 3, 10)
    assert (shared.directory / names.SIZES).read_bytes() == note
    with stratalog.open(shared.directory, compatibility=rocketmq.compatibility) as store:
        assert {name: getattr(store.settings, name) for name in SMALL_FILES} == SMALL_FILES
        assert not store.recovery.notes


def test_the_sizes_of_a_store_of_rocketmq_are_found_and_kept(releases: dict[str, RocketMQ], share: Share) -> None:
    """Queues and index are removed: from the note they come back with sizes that RocketMQ takes."""
    rocketmq = releases["5.5.0"]
    shared = share(f"{rocketmq.release} found")
    shared.theirs(rocketmq, 1, 100)
    sizes, shared.sizes = shared.sizes, {}
    shared.ours(rocketmq.compatibility, 2, 50)
    for tree in (names.CONSUME_QUEUE, names.INDEX):
        for path in (shared.directory / tree).rglob("*"):
            if path.is_file():
                path.unlink()
    shared.ours(rocketmq.compatibility, 3, 50)
    shared.sizes = sizes
    shared.theirs(rocketmq, 4, 50)
