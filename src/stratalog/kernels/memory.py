"""Loads, stores and copies at raw int64 addresses, for use inside kernels.

Integers are big-endian as on RocketMQ's disk; `*_le_*` is the machine's order, as in Arrow buffers. Nothing is checked:
the caller keeps the memory alive and stays inside it. None of these can be called from Python.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from stratalog.kernels.jit import part

cgutils: Any = _cgutils  # published without types
_I1, _I8, _I64 = (ir.IntType(bits) for bits in (1, 8, 64))
BLOCK_SIZE = 64
"""Bytes that `match_block` looks at."""
PAGE_SIZE = 4096
"""What begins at a multiple of this can be read up to the next one: no machine has smaller pages."""
_BYTES = ir.VectorType(_I8, BLOCK_SIZE)


def _loader(bits: int, *, signed: bool = True, big_endian: bool = True) -> Callable[[int], int]:
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()))
            value.align = 1
            if big_endian and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return types.int64(types.int64), codegen

    return cast(Callable[[int], int], intrinsic(load))


def _storer(bits: int, *, big_endian: bool = True) -> Callable[[int, int], None]:
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            cell = ir.IntType(bits)
            value = args[1] if bits == 64 else builder.trunc(args[1], cell)
            if big_endian and bits > 8:
                value = builder.bswap(value)
            builder.store(value, builder.inttoptr(args[0], cell.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return cast(Callable[[int, int], None], intrinsic(store))


load_u8 = _loader(8, signed=False)
load_i16 = _loader(16)
load_i32 = _loader(32)
load_u32 = _loader(32, signed=False)
load_i64 = _loader(64)
load_le_i32 = _loader(32, big_endian=False)
load_le_i64 = _loader(64, big_endian=False)


def _word(typingctx: Any, block: Any, number: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cell = builder.gep(builder.inttoptr(args[0], _I64.as_pointer()), [args[1]])
        value = builder.load(cell)
        value.align = 1
        return value

    return types.int64(types.int64, types.int64), codegen


def _set_word(typingctx: Any, block: Any, number: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cell = builder.gep(builder.inttoptr(args[0], _I64.as_pointer()), [args[1]])
        builder.store(args[2], cell).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


word = cast(Callable[[int, int], int], intrinsic(_word))
"""`word(block, number)`: one of the int64 at an address, in the machine's order."""
set_word = cast(Callable[[int, int, int], None], intrinsic(_set_word))
"""`set_word(block, number, value)`."""

store_u8 = _storer(8)
store_i16 = _storer(16)
store_i32 = _storer(32)
store_i64 = _storer(64)
store_le_i32 = _storer(32, big_endian=False)
store_le_i64 = _storer(64, big_endian=False)


def _copy(typingctx: Any, dst: Any, src: Any, size: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _I8.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, _I64, _I1])
        memcpy = cgutils.get_or_insert_function(builder.module, kind, "llvm.memcpy.p0i8.p0i8.i64")
        target, source = builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer)
        builder.call(memcpy, [target, source, args[2], ir.Constant(_I1, 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


copy = cast(Callable[[int, int, int], None], intrinsic(_copy))
"""`copy(dst, src, size)`: memcpy; the two must not overlap."""


_CHUNK, _FEW = 16, 256


@part
def copy_few(dst: int, src: int, size: int) -> None:
    """`copy` for what is a few bytes most of the time: no call, and the last bytes may be written twice."""
    if size > _FEW:
        copy(dst, src, size)
    elif size >= _CHUNK:
        for at in range(0, size - _CHUNK, _CHUNK):
            copy(dst + at, src + at, _CHUNK)
        copy(dst + size - _CHUNK, src + size - _CHUNK, _CHUNK)
    elif size >= 8:
        store_le_i64(dst, load_le_i64(src))
        store_le_i64(dst + size - 8, load_le_i64(src + size - 8))
    elif size >= 4:
        store_le_i32(dst, load_le_i32(src))
        store_le_i32(dst + size - 4, load_le_i32(src + size - 4))
    else:
        for at in range(size):
            store_u8(dst + at, load_u8(src + at))


def _prefetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, i32 = _I8.as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        for_reading, keep, of_data = ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)
        builder.call(function, [builder.inttoptr(args[0], pointer), for_reading, keep, of_data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


prefetch = cast(Callable[[int], None], intrinsic(_prefetch))
"""Bring the cache line of an address in; harmless at any address, even one that is not mapped."""


def _match_block(typingctx: Any, address: Any, byte: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = builder.load(builder.inttoptr(args[0], _BYTES.as_pointer()))
        block.align = 1
        lane = builder.insert_element(
            ir.Constant(_BYTES, ir.Undefined), builder.trunc(args[1], _I8), ir.Constant(_I64, 0)
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK_SIZE), [0] * BLOCK_SIZE)
        wanted = builder.shuffle_vector(lane, ir.Constant(_BYTES, ir.Undefined), lanes)
        return builder.bitcast(builder.icmp_unsigned("==", block, wanted), _I64)

    return types.int64(types.int64, types.int64), codegen


def _trailing_zeros(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(_I1, 1))

    return types.int64(types.int64), codegen


match_block = cast(Callable[[int, int], int], intrinsic(_match_block))
"""`match_block(address, byte)`: bit i is set when byte i of the BLOCK_SIZE bytes equals `byte`."""

trailing_zeros = cast(Callable[[int], int], intrinsic(_trailing_zeros))
"""Number of zero bits below the lowest one bit; `value` must not be 0."""
