"""The second tier: old messages on cheap storage, in the layout of RocketMQ's tiered store.

from stratalog import tiered

with tiered.open("data/tier") as tier:
    for message in tier.queue("orders", 0).read():
        print(message.body)
    tier.query("orders", key="o-1")
"""

from stratalog.tiered.manifest import Manifest
from stratalog.tiered.policy import JoinedStore, ReadPolicy, attach
from stratalog.tiered.queue import GetResult, GetStatus, TieredQueue
from stratalog.tiered.segment import PosixBackend, SegmentBackend
from stratalog.tiered.state import TierState
from stratalog.tiered.tiered_store import TieredStore
from stratalog.tiered.tiered_store import open_tier as open  # noqa: A004

__all__ = [
    "GetResult",
    "GetStatus",
    "JoinedStore",
    "Manifest",
    "PosixBackend",
    "ReadPolicy",
    "SegmentBackend",
    "TierState",
    "TieredQueue",
    "TieredStore",
    "attach",
    "open",
]
