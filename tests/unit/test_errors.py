"""The tree of errors, and where its names are found."""

import stratalog
from stratalog import errors

CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type)}


def test_every_error_has_one_root_and_one_line_in_the_drawn_tree() -> None:
    tree = errors.__doc__ or ""
    for name in CLASSES - {"StratalogError"}:
        assert issubclass(getattr(errors, name), errors.StratalogError)
        assert tree.count(f"── {name} ") == 1, name


def test_every_error_can_be_caught_by_its_name_in_the_package() -> None:
    assert set(stratalog.__all__) >= CLASSES
    for name in CLASSES:
        assert getattr(stratalog, name) is getattr(errors, name)
