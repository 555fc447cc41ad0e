import pytest

from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, light_offset, light_places


@pytest.mark.parametrize(
    ("names", "offsets", "places"),
    [
        ("%LMQ%a,%LMQ%b", "0,0", [("%LMQ%a", 0), ("%LMQ%b", 0)]),
        ("%LMQ%a,%LMQ%b", "070", []),
        ("%LMQ%a,%LMQ%b", "0,0,1", []),
        ("%LMQ%a7%LMQ%b", "0,0", []),
        ("%LMQ%a,%LMQ%b", "0,,", [("%LMQ%a", 0)]),
        ("%LMQ%a,plain", "0,", [("%LMQ%a", 0)]),
        ("%LMQ%a,", "0", [("%LMQ%a", 0)]),
        ("%LMQ%a,%LMQ%b", "z,0", [("%LMQ%b", 0)]),
    ],
)
def test_names_and_offsets_are_paired_where_there_are_as_many(
    names: str, offsets: str, places: list[tuple[str, int]]
) -> None:
    stored = f"{MULTI_QUEUE_OFFSET}\x01{offsets}\x02{MULTI_DISPATCH}\x01{names}\x02".encode()
    assert light_places("topic", stored, 1000)[0] == places
    for name in ("%LMQ%a", "%LMQ%b"):
        assert light_offset("topic", stored, name) == dict(places).get(name, -1)
