"""Our errors, when they come back from Spark.

What a planner or task of Spark raises reaches the caller as an exception of Spark's with the Python traceback as text.
`own_errors` turns it back into the error that was raised, so that one `except` is enough.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog import errors

_RAISED = re.compile(r"^\s*(?:pyspark\S*: )?stratalog\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def own_errors() -> Iterator[None]:
    """Within it, an exception of Spark's that stands for one of ours is raised as ours.

    with own_errors():
        rows = frame.collect()
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        ours = error_in(str(error))
        if ours is None:
            raise
        raise ours from error


def error_in(text: str) -> errors.StratalogError | None:
    """The last error of ours in a traceback's text; None when there is none."""
    for name, message in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name, None)
        if kind is errors.OffsetOutOfRange:
            return errors.OffsetOutOfRange(message, next_offset=-1)
        if isinstance(kind, type) and issubclass(kind, errors.StratalogError):
            return kind(message)
    return None
