"""The tree of errors, and where its names are found."""

import copy
import inspect
import multiprocessing
import pickle  # noqa: TID251 - what other processes do with errors
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import stratalog
from stratalog import errors

CLASSES = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
CLASSES = {name for name in CLASSES if isinstance(getattr(errors, name), type)}


def test_every_error_has_one_root_and_one_line_in_the_drawn_tree() -> None:
    tree = errors.__doc__ or ""
    for name in CLASSES - {"StratalogError"}:
        assert issubclass(getattr(errors, name), errors.StratalogError)
        assert tree.count(f"── {name} ") == 1, name


def test_every_error_can_be_caught_by_its_name_in_the_package() -> None:
    assert set(stratalog.__all__) >= CLASSES
    for name in CLASSES:
        assert getattr(stratalog, name) is getattr(errors, name)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301
    "oldest pickle": lambda error: pickle.loads(pickle.dumps(error, 0)),  # noqa: S301
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def _made(kind: type[errors.StratalogError]) -> errors.StratalogError:
    """With every argument that the class takes."""
    given: dict[str, Any] = {"next_offset": 7, "position": 3, "path": "/s/commitlog/0"}
    known = inspect.getfullargspec(kind.__init__).kwonlyargs if "__init__" in vars(kind) else ()
    return kind("what is wrong", **{name: value for name, value in given.items() if name in known})


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_survives_pickle_and_copy(name: str, how: str) -> None:
    error = _made(getattr(errors, name))
    error.add_note("seen in a test")
    found = COPIES[how](error)
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


def _raise(name: str) -> None:
    raise _made(getattr(errors, name))


def test_every_error_comes_back_from_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in sorted(CLASSES):
            error = pool.submit(_raise, name).exception(timeout=60)
            assert type(error) is getattr(errors, name)
            assert str(error) == str(_made(type(error)))
