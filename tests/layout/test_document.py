"""The format document."""

from pathlib import Path

import pytest

from layout.shapes import LAYOUTS
from stratalog.errors import CorruptData
from stratalog.layout import message
from stratalog.layout.document import dump, formats_document
from stratalog.layout.message import BLANK, HEADS, MAGIC_BLANK
from stratalog.layout.record import Layout
from stratalog.layout.sysflag import HOSTS_MASK

COMMITTED = Path(__file__).parents[2] / "docs" / "formats.md"

SHOWN_OF_A_MESSAGE = {
    HEADS[0].name,
    HEADS[HOSTS_MASK].name,
    "V1 topic length",
    "V2 topic length",
    "properties length",
    "blank record",
    "client batch entry",
}
"""The module's other declarations are parts of a head, or views of its bytes."""


def test_the_committed_document_is_the_one_that_the_declarations_make() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == formats_document(), (
        "run: python -m stratalog.layout.document docs/formats.md"
    )


def test_the_document_shows_every_layout() -> None:
    document = formats_document()
    shown = {layout.name for layout in LAYOUTS if f"### {layout.name[0].upper()}{layout.name[1:]}: " in document}
    of_a_message = {value.name for value in vars(message).values() if isinstance(value, Layout)}
    of_a_message |= {layout.name for layout in HEADS.values()}
    assert shown == {layout.name for layout in LAYOUTS} - of_a_message | SHOWN_OF_A_MESSAGE
    assert len(shown) >= 28


def test_a_dump_tells_position_bytes_name_and_value() -> None:
    data = b"xx" + BLANK.pack(300, MAGIC_BLANK)
    assert list(dump(BLANK, data, 2)) == [(2, "0000012c", "size", 300), (6, "cbd43194", "magic", MAGIC_BLANK)]
    with pytest.raises(CorruptData):
        list(dump(BLANK, data, 3))
