"""Values in error messages."""

from typing import Any

_SHOWN_TYPES = (type(None), bool, int, float, str, bytes)
_SHOWN_CHARS = 80


def shown(value: Any) -> str:
    """A value for an error message; of types other than the plain ones only the name, their `repr` may do anything."""
    kind = type(value)
    if kind not in _SHOWN_TYPES:
        return f"of type {kind.__name__}"
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        return "of very many digits"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
