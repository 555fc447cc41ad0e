"""The injector itself."""

import contextlib
import sys

from crash.interrupts import Dropped, Injector


def test_the_injector_leaves_no_exception_behind() -> None:
    def handles() -> None:
        try:
            raise KeyError
        except KeyError:
            pass
        with contextlib.suppress(KeyError):
            raise KeyError

    traced = (__file__, contextlib.__file__)
    with Injector(0, traced=traced) as counted:
        handles()
    assert len(counted.points) > 10
    for number in counted.points:
        with contextlib.suppress(Dropped), Injector(number, raises=Dropped, traced=traced):
            handles()
        assert sys.exc_info() == (None, None, None), number
