"""Eight floats of a row side by side, which a loop (exfm/loops.py) loads, computes with and stores as one.

    row(array, r)   where row r of an array of float32 begins: row(array, r)[d] is a number of it, to read and write
    after(row, d)   the address d numbers further
    load(row, d)    load_some(row, d, count)    store(row, d, lanes)    a + b    a - b    a * b
    multiply(…), dot(D, a, b): of matrices and rows that stay in the nearest cache
    same(x): x in all lanes        total(lanes): ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), a lane by its number

The compiler makes such code of loops over numbers only where it knows that no array overlaps another, and that sums may
be added in another order. Each lane has the bits that its number would have by itself. A row is an address: parts of a
loop take it as one number, and no references to it are counted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from exfm.loops import inlined

LANES = 8

_WORD = ir.IntType(32)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)


class Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(f"{LANES} lanes")


_lanes, _pointer = Lanes(), types.CPointer(types.float32)


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _VECTOR)


def _row(typing: Any, array: Any, r: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = context.make_array(signature.args[0])(context, builder, args[0])
        place = args[1]
        for length in cgutils.unpack_tuple(builder, of.shape)[1:]:
            place = builder.mul(place, length)
        return builder.gep(of.data, [place])

    return _pointer(array, types.intp), code


def _after(typing: Any, row: Any, d: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return _pointer(_pointer, types.intp), code


def _lanes_at(builder: Any, row: Any, d: Any) -> Any:
    return builder.bitcast(builder.gep(row, [d]), _VECTOR.as_pointer())


def _load(typing: Any, row: Any, d: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_lanes_at(builder, *args), align=4)

    return _lanes(_pointer, types.intp), code


def _load_some(typing: Any, row: Any, d: Any, count: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _lanes_at(builder, *args[:2])
        numbers = ir.Constant(ir.VectorType(_WORD, LANES), list(range(LANES)))
        taken = builder.icmp_signed("<", numbers, _in_all(builder, builder.trunc(args[2], _WORD)))
        kind = ir.FunctionType(_VECTOR, [place.type, _WORD, taken.type, _VECTOR])
        masked = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
        return builder.call(masked, [place, _WORD(4), taken, ir.Constant(_VECTOR, [0.0] * LANES)])

    return _lanes(_pointer, types.intp, types.intp), code


def _store(typing: Any, row: Any, d: Any, lanes: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _lanes_at(builder, *args[:2]), align=4)
        return context.get_dummy_value()

    return types.void(_pointer, types.intp, _lanes), code


def _same(typing: Any, x: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _in_all(builder, args[0])

    return _lanes(types.float32), code


def _total(typing: Any, lanes: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (of,) = args
        for left in (8, 4, 2):
            of = builder.fadd(*(_picked(builder, of, range(first, left, 2)) for first in (0, 1)))
        return builder.extract_element(of, _WORD(0))

    return types.float32(_lanes), code


def _in_all(builder: Any, x: Any) -> Any:
    one = ir.Constant(ir.VectorType(x.type, LANES), ir.Undefined)
    return _picked(builder, builder.insert_element(one, x, _WORD(0)), [0] * LANES)


def _picked(builder: Any, vector: Any, lanes: Sequence[int]) -> Any:
    order = ir.Constant(ir.VectorType(_WORD, len(lanes)), list(lanes))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order)


def by_width(part: Callable[..., Any]) -> Any:
    """A part of loops (`inlined`) whose first argument is a width: with code of its own for rows of 4, 8 and 16."""
    any_width = inlined(part)

    def chosen(D, *others):
        if D == 4:
            return any_width(4, *others)
        if D == 8:
            return any_width(8, *others)
        if D == 16:
            return any_width(16, *others)
        return any_width(D, *others)

    return inlined(chosen)


row: Any = intrinsic(_row)
after: Any = intrinsic(_after)
load: Any = intrinsic(_load)
load_some: Any = intrinsic(_load_some)
"""The first `count` of eight, and 0 in the lanes of the others, which are not read."""
store: Any = intrinsic(_store)
same: Any = intrinsic(_same)
total: Any = intrinsic(_total)


def _define(sign: Callable[..., Any], instruction: str) -> None:
    def typed(typing: Any, a: Any, b: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return _lanes(a, b), code

    of_two: Any = intrinsic(typed)
    overload(sign)(lambda a, b: (lambda a, b: of_two(a, b)) if a is b is _lanes else None)


for _sign, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _define(_sign, _instruction)


@inlined
def multiply(to, rows, a, of_row, of_sum, S, b, J, add):
    """to[i, :] = Σ_s a[i, s] b[s, :], added to what is there or not. `a` (rows × S) lies by these strides, b (S × J)
    row after row. Four rows at a time: so four sums are on their way."""
    zero, fours, whole = same(np.float32(0)), rows - rows % 4, J - J % LANES
    for j in range(0, whole, LANES):
        for i in range(0, fours, 4):
            at, of = i * J + j, i * of_row
            x0, x1, x2, x3 = zero, zero, zero, zero
            if add:
                x0, x1, x2, x3 = load(to, at), load(to, at + J), load(to, at + 2 * J), load(to, at + 3 * J)
            for s in range(S):
                b_s, k = load(b, s * J + j), of + s * of_sum
                x0 = x0 + same(a[k]) * b_s
                x1 = x1 + same(a[k + of_row]) * b_s
                x2 = x2 + same(a[k + 2 * of_row]) * b_s
                x3 = x3 + same(a[k + 3 * of_row]) * b_s
            store(to, at, x0)
            store(to, at + J, x1)
            store(to, at + 2 * J, x2)
            store(to, at + 3 * J, x3)
        for i in range(fours, rows):
            x0 = load(to, i * J + j) if add else zero
            for s in range(S):
                x0 = x0 + same(a[i * of_row + s * of_sum]) * load(b, s * J + j)
            store(to, i * J + j, x0)
    for i in range(rows):
        for j in range(whole, J):
            x = to[i * J + j] if add else np.float32(0)
            for s in range(S):
                x += a[i * of_row + s * of_sum] * b[s * J + j]
            to[i * J + j] = x


@by_width
def dot(D, a, b):
    """Σ_d a[d] b[d]."""
    whole, lanes = D - D % LANES, same(np.float32(0))
    for d in range(0, whole, LANES):
        lanes = lanes + load(a, d) * load(b, d)
    found = total(lanes)
    for d in range(whole, D):
        found += a[d] * b[d]
    return found
