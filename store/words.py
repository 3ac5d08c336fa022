"""Machine words for the compiled decoders: loads at any byte, five-bit codes, whole atoms.

Each of these is a few instructions that numba has no spelling for. What a processor
lacks is done another way, with the same result.
"""

from __future__ import annotations

import os
from typing import Any, Final, no_type_check

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]  # comes with numba
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

compiled: Any = njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

BLOCK: Final = 64
"""Codes that `unpack_block` takes out at once; as many bytes must be readable there."""
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def _host_has(feature: str) -> bool:
    """Whether numba compiles for a processor with that feature."""
    if "NUMBA_CPU_NAME" in os.environ:  # the user asked for some other processor
        return False
    return bool(binding.get_host_cpu_features().get(feature))


_SLOW_PDEP = ("bdver4", "znver1", "znver2")  # AMD cores that run it in microcode
HAS_PDEP: Final = _host_has("bmi2") and binding.get_host_cpu_name() not in _SLOW_PDEP
HAS_VBMI: Final = _host_has("avx512vbmi")


@no_type_check
def _pointer(context, builder, kind, array, at, target):
    """Address of element `at` of an array, as a pointer to `target`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), target.as_pointer())


@no_type_check
def _vector(values, kind):
    return ir.Constant(ir.VectorType(kind, len(values)), [ir.Constant(kind, v) for v in values])


@intrinsic
@no_type_check
def load(typingctx, data, at):
    """Eight bytes of a u8 array as u64, at any byte."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _I64)
        return builder.load(pointer, align=1)

    return types.uint64(data, types.int64), codegen


@intrinsic
@no_type_check
def store(typingctx, data, at, word):
    """Write a u64 over eight bytes of a contiguous u8 array, at any byte."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _I64)
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), codegen


@intrinsic
@no_type_check
def store_zeros(typingctx, out, at, count):
    """`count` zeros in a flat array of any dtype, from `at`."""

    def codegen(context, builder, signature, args):
        kind = context.get_data_type(signature.args[0].dtype)
        target = _pointer(context, builder, signature.args[0], args[0], args[1], kind)
        nbytes = builder.mul(args[2], ir.Constant(_I64, context.get_abi_sizeof(kind)))
        cgutils.memset(builder, target, nbytes, 0)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64), codegen


@intrinsic
@no_type_check
def count_bits(typingctx, word):
    """How many bits of a u64 are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
@no_type_check
def lowest_bit(typingctx, word):
    """Number of the lowest set bit of a u64 that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic
@no_type_check
def _pdep(typingctx, word):
    """Eight 5-bit codes of a u64 to eight bytes in one instruction."""

    def codegen(context, builder, signature, args):
        function = builder.module.declare_intrinsic(
            "llvm.x86.bmi.pdep.64", fnty=ir.FunctionType(_I64, [_I64, _I64])
        )
        return builder.call(function, [args[0], ir.Constant(_I64, 0x1F1F1F1F1F1F1F1F)])

    return types.uint64(types.uint64), codegen


@compiled
@no_type_check
def spread_plainly(x):
    """The same in three mask-and-shift steps, for every processor."""
    x = (x & np.uint64(0xFFFFF)) | ((x & np.uint64(0xFFFFF00000)) << np.uint64(12))
    x = (x & np.uint64(0x000003FF000003FF)) | ((x & np.uint64(0x000FFC00000FFC00)) << np.uint64(6))
    return (x & np.uint64(0x001F001F001F001F)) | (
        (x & np.uint64(0x03E003E003E003E0)) << np.uint64(3)
    )


@compiled
@no_type_check
def spread_fast(x):
    """`spread_plainly`, where the processor can."""
    return _pdep(x)


spread: Any = spread_fast if HAS_PDEP else spread_plainly


@intrinsic
@no_type_check
def _unpack_wide(typingctx, span, bit, out, at):
    """64 codes by one byte permutation and one multishift (AVX-512 VBMI)."""

    def codegen(context, builder, signature, args):
        span, bit, out, at = args
        wide = ir.VectorType(_I8, BLOCK)
        kind = ir.FunctionType(wide, [wide, wide])
        where = builder.lshr(bit, ir.Constant(_I64, 3))
        source = _pointer(context, builder, signature.args[0], span, where, wide)
        target = _pointer(context, builder, signature.args[2], out, at, wide)
        permute = builder.module.declare_intrinsic("llvm.x86.avx512.permvar.qi.512", fnty=kind)
        shifts = builder.module.declare_intrinsic("llvm.x86.avx512.pmultishift.qb.512", fnty=kind)
        # Word k of eight gets the bytes from 5k on, which hold its eight codes.
        bytes_of = _vector([5 * (i // 8) + i % 8 for i in range(BLOCK)], _I8)
        words = builder.call(permute, [builder.load(source, align=1), bytes_of])
        first = builder.trunc(builder.and_(bit, ir.Constant(_I64, 7)), _I8)
        lane = builder.insert_element(ir.Constant(wide, ir.Undefined), first, ir.Constant(_I32, 0))
        splat = builder.shuffle_vector(lane, lane, _vector([0] * BLOCK, _I32))
        begin = builder.add(splat, _vector([5 * (i % 8) for i in range(BLOCK)], _I8))
        codes = builder.and_(builder.call(shifts, [begin, words]), _vector([31] * BLOCK, _I8))
        builder.store(codes, target, align=1)
        return context.get_dummy_value()

    return types.void(span, types.int64, out, types.int64), codegen


@compiled
@no_type_check
def unpack_block_wide(span, bit, out, at):
    """`unpack_block_plainly`, where the processor can."""
    _unpack_wide(span, bit, out, at)


@compiled
@no_type_check
def unpack_block_plainly(span, bit, out, at):
    """64 five-bit codes from bit `bit` of `span` into `out` (flat u8) from `at`."""
    shift = np.uint64(bit & 7)
    for group in range(BLOCK // 8):
        store(out, at + 8 * group, spread(load(span, (bit >> 3) + 5 * group) >> shift))


unpack_block: Any = unpack_block_wide if HAS_VBMI else unpack_block_plainly


@intrinsic
@no_type_check
def store_mask(typingctx, out, at, word):
    """Bits 0-36 of `word` as 37 zeros and ones of a flat array of any dtype, from `at`."""

    def codegen(context, builder, signature, args):
        out, at, word = args
        kind = context.get_data_type(signature.args[0].dtype)
        number = isinstance(kind, ir.IntType)
        many = ir.VectorType(kind, 32)
        bits = builder.bitcast(builder.trunc(word, _I32), ir.VectorType(ir.IntType(1), 32))
        values = builder.zext(bits, many) if number else builder.uitofp(bits, many)
        target = _pointer(context, builder, signature.args[0], out, at, many)
        builder.store(values, target, align=1)
        for atom in range(32, 37):
            place = builder.add(at, ir.Constant(_I64, atom))
            target = _pointer(context, builder, signature.args[0], out, place, kind)
            bit = builder.trunc(builder.lshr(word, ir.Constant(_I64, atom)), ir.IntType(1))
            builder.store(builder.zext(bit, kind) if number else builder.uitofp(bit, kind), target)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), codegen


@intrinsic
@no_type_check
def store_atom(typingctx, out, at, word, anchor, center):
    """Coordinates of an atom, and a zero behind them: four floats from `at` of a flat f32 array.

    `(anchor + the three i16 of the u64 `word`) thousandths - center`; `anchor` and `center`
    are tuples of three i32 and three f32. Rounded as `evofeed.store.crop_atoms.angstroms` is.
    """

    def codegen(context, builder, signature, args):
        out, at, word, anchor, center = args
        offsets = builder.sext(
            builder.bitcast(word, ir.VectorType(_I16, 4)), ir.VectorType(_I32, 4)
        )
        k = builder.add(offsets, _four(builder, anchor, _I32))
        scaled = builder.fmul(builder.sitofp(k, ir.VectorType(_F64, 4)), _vector([0.001] * 4, _F64))
        values = builder.fsub(
            builder.fptrunc(scaled, ir.VectorType(_F32, 4)), _four(builder, center, _F32)
        )
        values = builder.insert_element(values, ir.Constant(_F32, 0.0), ir.Constant(_I32, 3))
        target = _pointer(context, builder, signature.args[0], out, at, ir.VectorType(_F32, 4))
        builder.store(values, target, align=4)
        return context.get_dummy_value()

    anchors, centers = types.UniTuple(types.int32, 3), types.UniTuple(types.float32, 3)
    return types.void(out, types.int64, types.uint64, anchors, centers), codegen


@no_type_check
def _four(builder, three, kind):
    """Three values and a zero as a vector."""
    vector = _vector([0] * 4, kind)
    for lane in range(3):
        value = builder.extract_value(three, lane)
        vector = builder.insert_element(vector, value, ir.Constant(_I32, lane))
    return vector
