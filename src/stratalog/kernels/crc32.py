"""IEEE CRC-32 inside kernels: carry-less multiplication where the CPU has it, a table of 8 bytes a step elsewhere.

The folding is Intel's ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ"): 16-byte blocks of the message
are polynomials; a block is moved 128·n bits on by multiplying its halves with x^(128n±32) mod P, so eight blocks move
side by side, are folded into one, and a Barrett reduction brings that to 32 bits. Emitted as LLVM instructions, the CRC
is compiled *into* the kernels that need it: no call and no GIL.

A size that is no multiple of 16 needs no loop over the rest: zeros in *front* of a message do not change its CRC once
the initial value is XORed into it, so the first `size % 16` bytes become a block padded with zeros before them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import cgutils, load_le_i64, load_u8

POLYNOMIAL = 0x104C11DB7
HAS_CARRYLESS_MULTIPLY = bool(llvm.get_host_cpu_features().get("pclmul"))

_LANES = 8
_BLOCK = 16
_LANES_SIZE = _LANES * _BLOCK
_I8, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))
_PAIR = ir.VectorType(_I64, 2)


def _reflected(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def _power_of_x(exponent: int) -> int:
    """x^exponent mod P, bit-reflected and shifted by one, as a carry-less product of reflected operands wants it."""
    remainder = 1
    for _ in range(exponent):
        remainder <<= 1
        if remainder >> 32:
            remainder ^= POLYNOMIAL
    return _reflected(remainder, 32) << 1


def _quotient() -> int:
    """x^64 div P, bit-reflected: Barrett's constant."""
    quotient, remainder = 0, 1 << 64
    for shift in range(32, -1, -1):
        if remainder >> (shift + 32) & 1:
            quotient |= 1 << shift
            remainder ^= POLYNOMIAL << shift
    return _reflected(quotient, 33)


def _pair(low: int, high: int) -> Any:
    return ir.Constant(_PAIR, [ir.Constant(_I64, low), ir.Constant(_I64, high)])


def _fold_by(bits: int) -> Any:
    return _pair(_power_of_x(bits + 32), _power_of_x(bits - 32))


class _Emitter:
    """Writes the folding as LLVM instructions through numba's builder."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        kind = ir.FunctionType(_PAIR, [_PAIR, _PAIR, _I8])
        self.multiply_pairs = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq")
        self.by_block = _fold_by(128)
        self.by_lanes = _fold_by(128 * _LANES)

    def block_at(self, address: Any, plus: int = 0) -> Any:
        pointer = self.builder.inttoptr(self.builder.add(address, ir.Constant(_I64, plus)), _PAIR.as_pointer())
        block = self.builder.load(pointer)
        block.align = 1
        return block

    def multiply(self, left: Any, right: Any, halves: int) -> Any:
        """Carry-less product of one half each; bit 0 of `halves` picks the left's, bit 4 the right's."""
        return self.builder.call(self.multiply_pairs, [left, right, ir.Constant(_I8, halves)])

    def fold(self, block: Any, constant: Any, into: Any) -> Any:
        """`block` moved on by the constant's distance, added to the block that stands there."""
        low, high = self.multiply(block, constant, 0x00), self.multiply(block, constant, 0x11)
        return self.builder.xor(self.builder.xor(low, high), into)

    def as_number(self, block: Any) -> Any:
        return self.builder.bitcast(block, _I128)

    def as_block(self, number: Any) -> Any:
        return self.builder.bitcast(number, _PAIR)

    def shifted(self, block: Any, size: int) -> Any:
        """`block` without its first `size` bytes."""
        return self.as_block(self.builder.lshr(self.as_number(block), ir.Constant(_I128, 8 * size)))

    def start(self, address: Any, size: Any) -> tuple[Any, Any]:
        """The first `size % 16` bytes, padded in front, folded with the block behind them; and that block's address."""
        builder = self.builder
        odd = builder.and_(size, ir.Constant(_I64, _BLOCK - 1))
        odd_bits = builder.zext(builder.shl(odd, ir.Constant(_I64, 3)), _I128)
        initial = ir.Constant(_I128, 0xFFFFFFFF)
        first = builder.xor(self.as_number(self.block_at(address)), initial)
        left_out = builder.and_(builder.sub(ir.Constant(_I128, 128), odd_bits), ir.Constant(_I128, 127))
        is_even = builder.icmp_unsigned("==", odd, ir.Constant(_I64, 0))
        padded = builder.select(is_even, ir.Constant(_I128, 0), builder.shl(first, left_out))
        behind = builder.add(address, odd)
        # Of the initial value, what does not fit into fewer than 4 odd bytes belongs to the next block.
        second = builder.xor(self.as_number(self.block_at(behind)), builder.lshr(initial, odd_bits))
        return self.fold(self.as_block(padded), self.by_block, self.as_block(second)), behind

    @contextmanager
    def while_left(self, position: Any, end: Any, size: int) -> Iterator[Any]:
        """Body of a loop that runs, and moves `position` on by `size`, while that many bytes are left before `end`."""
        builder = self.builder
        head, body, done = (builder.append_basic_block(name) for name in ("crc.head", "crc.body", "crc.done"))
        builder.branch(head)
        builder.position_at_end(head)
        at = builder.load(position)
        after = builder.add(at, ir.Constant(_I64, size))
        builder.cbranch(builder.icmp_signed("<=", after, end), body, done)
        builder.position_at_end(body)
        yield at
        builder.store(after, position)
        builder.branch(head)
        builder.position_at_end(done)

    def fold_lanes(self, state: Any, position: Any, end: Any) -> None:
        """Eight blocks a step: `state` becomes the first lane, and in the end the lanes one state again."""
        builder = self.builder
        at = builder.load(position)
        blocks = [self.block_at(at, _BLOCK * lane) for lane in range(_LANES - 1)]
        lanes = [cgutils.alloca_once_value(builder, block) for block in (builder.load(state), *blocks)]
        builder.store(builder.add(at, ir.Constant(_I64, _LANES_SIZE - _BLOCK)), position)
        with self.while_left(position, end, _LANES_SIZE) as at:
            for lane, slot in enumerate(lanes):
                builder.store(self.fold(builder.load(slot), self.by_lanes, self.block_at(at, _BLOCK * lane)), slot)
        folded = builder.load(lanes[0])
        for slot in lanes[1:]:
            folded = self.fold(folded, self.by_block, builder.load(slot))
        builder.store(folded, state)

    def reduce(self, block: Any) -> Any:
        """128 bits to 96, to 64, and by Barrett's reduction to the CRC."""
        builder, low_word = self.builder, _pair(0xFFFFFFFF, 0)
        block = builder.xor(self.multiply(block, self.by_block, 0x10), self.shifted(block, 8))
        low = builder.and_(block, low_word)
        block = builder.xor(self.multiply(low, _pair(_power_of_x(64), 0), 0x00), self.shifted(block, 4))
        barrett = _pair(_reflected(POLYNOMIAL, 33), _quotient())
        low = builder.and_(block, low_word)
        quotient = builder.and_(self.multiply(low, barrett, 0x10), low_word)
        remainder = self.as_number(builder.xor(block, self.multiply(quotient, barrett, 0x00)))
        return builder.not_(builder.trunc(builder.lshr(remainder, ir.Constant(_I128, 32)), _I32))


def _crc_of_blocks(typingctx: Any, address: Any, size: Any) -> Any:
    """CRC-32 of at least 16 bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, size = args
        emit = _Emitter(builder)
        first, behind = emit.start(address, size)
        end = builder.add(address, size)
        state = cgutils.alloca_once_value(builder, first)
        position = cgutils.alloca_once_value(builder, builder.add(behind, ir.Constant(_I64, _BLOCK)))
        many = builder.icmp_signed(">=", builder.sub(end, behind), ir.Constant(_I64, 2 * _LANES_SIZE))
        with builder.if_then(many):
            emit.fold_lanes(state, position, end)
        with emit.while_left(position, end, _BLOCK) as at:
            builder.store(emit.fold(builder.load(state), emit.by_block, emit.block_at(at)), state)
        return builder.zext(emit.reduce(builder.load(state)), _I64)

    return types.int64(types.int64, types.int64), codegen


def _byte_table() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Row k: the CRC of each byte followed by k zero bytes."""
    reflected = _reflected(POLYNOMIAL, 33) >> 1
    table = np.zeros((8, 256), np.int64)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (reflected if crc & 1 else 0)
        table[0, byte] = crc
    for row in range(1, 8):
        table[row] = table[row - 1] >> 8 ^ table[0][table[row - 1] & 0xFF]
    return table


_TABLE = _byte_table()
_folded_crc = cast(Callable[[int, int], int], intrinsic(_crc_of_blocks))


@kernel
def crc32_by_table(address: int, size: int) -> int:
    """CRC-32 of any size without special instructions, 1.4 GB/s."""
    crc, position, end = 0xFFFFFFFF, address, address + size
    while position + 8 <= end:
        word = load_le_i64(position) ^ crc
        crc = 0
        for byte in range(8):
            crc ^= _TABLE[7 - byte, (word >> (8 * byte)) & 0xFF]
        position += 8
    while position < end:
        crc = _TABLE[0, (crc ^ load_u8(position)) & 0xFF] ^ crc >> 8
        position += 1
    return crc ^ 0xFFFFFFFF


if HAS_CARRYLESS_MULTIPLY:

    @kernel
    def crc32(address: int, size: int) -> int:
        """Unsigned CRC-32 of `size` bytes, as `zlib.crc32`."""
        return _folded_crc(address, size) if size >= _BLOCK else crc32_by_table(address, size)

else:
    crc32 = crc32_by_table


@part
def body_crc(address: int, size: int) -> int:
    """The CRC of a body as records hold it: without its top bit (UtilAll.crc32)."""
    return crc32(address, size) & 0x7FFFFFFF
