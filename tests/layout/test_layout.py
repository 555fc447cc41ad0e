"""Declared layouts: one declaration gives the struct, the dtype and the positions, and they agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layout.shapes import LAYOUTS, value_of
from stratalog.errors import CorruptData
from stratalog.layout.record import Field, Layout


def test_every_layout_of_the_package_was_found() -> None:
    assert len(LAYOUTS) >= 35
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS), "a name is told once"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@given(data=st.data())
def test_values_come_back_from_struct_and_numpy_alike(layout: Layout, data: st.DataObject) -> None:
    values = data.draw(st.tuples(*map(value_of, layout.fields)))
    packed = layout.pack(*values)
    assert len(packed) == layout.size
    assert tuple(layout.unpack(packed)) == values
    lead = data.draw(st.binary(max_size=3))
    assert tuple(layout.unpack(memoryview(lead + packed + b"x"), len(lead))) == values
    row = np.frombuffer(packed, layout.dtype)[0]
    assert row.tobytes() == packed
    for field, value in zip(layout.fields, values, strict=True):
        found = row[field.name].tobytes() if field.kind == "bytes" else int(row[field.name])
        assert found == value
        assert layout.dtype.fields is not None
        assert layout.dtype.fields[field.name][1] == layout.position(field.name)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_short_buffer_is_corrupt_data(layout: Layout) -> None:
    for size in range(layout.size):
        with pytest.raises(CorruptData, match="are left"):
            layout.unpack(bytes(size))
    for position in (-1, 1, layout.size, 2**70):
        with pytest.raises(CorruptData):
            layout.unpack(bytes(layout.size), position)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_names_its_fields_and_where_they_come_from(layout: Layout) -> None:
    assert layout.source
    assert layout.dtype.itemsize == layout.size == sum(field.size for field in layout.fields)
    assert all(field.name.isidentifier() for field in layout.fields)


def test_a_declaration_that_does_not_add_up_fails_at_once() -> None:
    with pytest.raises(AssertionError, match="add up to 12"):
        Layout("wrong", Field("a", "i32", ""), Field("b", "i64", ""), size=13, source="nowhere")
