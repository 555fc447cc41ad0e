"""CPython's C interface, as `Native` functions call it: objects are int64 addresses.

Only functions of the stable interface (and `PyObject_Vectorcall`, which joined it in 3.12). Rules for the caller: a
*borrowed* object stays alive only as long as its owner and no Python code runs; a *new* one is given back by
`let_go`; an address of 0 is NULL, and then an exception is set: return 0 or call `forget_error`.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stratalog.kernels.jit import part
from stratalog.kernels.memory import cgutils, load_le_i64

_TYPE_POSITION = object.__basicsize__ - 8
"""An object's last common field is its type: the stable interface promises that (`Py_TYPE` is inlined from it)."""
WORD = 8
STACK_WORDS = 256


def _external(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, result(*arguments))


_i32, _i64 = types.int32, types.int64

bytes_address = _external("PyBytes_AsString", _i64, _i64)
bytes_size = _external("PyBytes_Size", _i64, _i64)
byte_array_address = _external("PyByteArray_AsString", _i64, _i64)
new_bytes = _external("PyBytes_FromStringAndSize", _i64, _i64, _i64)
text_address = _external("PyUnicode_AsUTF8AndSize", _i64, _i64, _i64)
"""`text_address(text, where its size goes)`: UTF-8 that the str keeps; NULL for half of a surrogate pair."""
new_text = _external("PyUnicode_DecodeUTF8", _i64, _i64, _i64, _i64)
"""`new_text(address, size, address of how errors are handled, or 0)`."""
tuple_size = _external("PyTuple_Size", _i64, _i64)
tuple_item = _external("PyTuple_GetItem", _i64, _i64, _i64)
list_size = _external("PyList_Size", _i64, _i64)
list_item = _external("PyList_GetItem", _i64, _i64, _i64)
new_list = _external("PyList_New", _i64, _i64)
add_to_list = _external("PyList_Append", _i32, _i64, _i64)
"""Takes a reference of its own; -1 when there is no memory."""
dict_size = _external("PyDict_Size", _i64, _i64)
dict_item = _external("PyDict_GetItemWithError", _i64, _i64, _i64)
"""Borrowed; NULL without an exception when the key is not there (with one when its hash or comparison raised)."""
dict_next = _external("PyDict_Next", _i32, _i64, _i64, _i64, _i64)
"""`dict_next(mapping, state, key, value)`: the last three are where words go; state starts as 0. Borrowed."""
integer_of = _external("PyLong_AsLongLong", _i64, _i64)
new_integer = _external("PyLong_FromLongLong", _i64, _i64)
call = _external("PyObject_CallNoArgs", _i64, _i64)
call_with = _external("PyObject_Vectorcall", _i64, _i64, _i64, _i64, _i64)
"""`call_with(callable, address of its args, their number, names of keywords or 0)`: a new object."""
keep = _external("Py_IncRef", types.void, _i64)
let_go = _external("Py_DecRef", types.void, _i64)
"""Give a reference back; does nothing to NULL."""
error_set = _external("PyErr_Occurred", _i64)
forget_error = _external("PyErr_Clear", types.void)


@part
def type_of(object_address: int) -> int:
    """Address of an object's type."""
    return load_le_i64(object_address + _TYPE_POSITION)


def _stack(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        area = cgutils.alloca_once(builder, ir.IntType(64), size=STACK_WORDS)
        return builder.ptrtoint(area, ir.IntType(64))

    return types.int64(), codegen


stack = cast(Callable[[], int], intrinsic(_stack))
"""Address of STACK_WORDS words that live until the function that asked for them returns."""
