"""What the layout tests share: every declared layout, and random records."""

import importlib
import pkgutil

from hypothesis import strategies as st

import stratalog.layout
from stratalog.layout.message import HEADS, MAGIC_V1, MAGIC_V2, Host, Record
from stratalog.layout.record import Field, Layout


def _declared() -> list[Layout]:
    found: dict[int, Layout] = {}
    for module_info in pkgutil.iter_modules(stratalog.layout.__path__):
        module = importlib.import_module(f"stratalog.layout.{module_info.name}")
        found |= {id(value): value for value in vars(module).values() if isinstance(value, Layout)}
    found |= {id(layout): layout for layout in HEADS.values()}
    return list(found.values())


LAYOUTS = _declared()


def value_of(field: Field) -> st.SearchStrategy[int | bytes]:
    """Any value that the field can hold, its limits often."""
    if field.kind == "bytes":
        return st.binary(min_size=field.size, max_size=field.size)
    bits = 8 * field.size
    low, high = (0, 2**bits - 1) if field.kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.one_of(st.sampled_from([low, high, 0]), st.integers(low, high))


i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), i32)


def records(magic: int) -> st.SearchStrategy[Record]:
    """Records of one version with hosts of every kind; encoding makes the IPv6 bits of `sys_flag` follow the hosts."""
    return st.builds(
        Record,
        topic=st.binary(min_size=0, max_size=255 if magic == MAGIC_V1 else 300),
        body=st.binary(max_size=200),
        properties=st.binary(max_size=200),
        queue_id=i32,
        flag=i32,
        queue_offset=i64,
        commit_log_offset=i64,
        sys_flag=i32,
        born_timestamp=i64,
        born_host=hosts,
        store_timestamp=i64,
        store_host=hosts,
        reconsume_times=i32,
        prepared_transaction_offset=i64,
        magic=st.just(magic),
    )


any_record = records(MAGIC_V1) | records(MAGIC_V2)
