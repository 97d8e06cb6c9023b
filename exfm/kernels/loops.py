"""Loops compiled by numba, for work that takes NumPy and torch many passes over memory, or many calls.

    @loop("void(f4[::1], i8[::1])")        a function compiled for these types when its module is imported
    @loop("…", "…")                        for each of several
    @inlined                               a part of loops, whose code is put in where it is called

Compiled code is kept next to the source, or in the user's cache where that cannot be written, for later processes;
where neither can, every process compiles, for some seconds. Sums are added in the order written, and no product is
fused with a sum: a loop has the same bits on every processor. A running loop releases the GIL. What an inner
loop uses of an array again and again is a variable outside of it: for all that the compiler knows, writing into one
array changes another.

Rows of a table that is larger than the caches are asked for with `prefetch` some rounds before they are used.
What lies where Arrow has it is read by its address: `integer_at(address, n)` is the n-th number from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}


def loop(*signatures: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function on arrays and numbers for signatures in numba's notation.

    >>> import numpy as np
    >>> @loop("f8(f8[::1])")
    ... def total(x):
    ...     found = 0.0
    ...     for value in x:
    ...         found += value
    ...     return found
    >>> total(np.ones(3))
    3.0
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(list(signatures), cache=True, **_SETTINGS)(function)
        except RuntimeError:  # there is no folder to keep it in: every process compiles it
            return numba.njit(list(signatures), **_SETTINGS)(function)

    return compiled


def inlined(function: Callable[..., Any]) -> Any:
    """A function that loops call. Best of numbers and addresses: of an array, every call counts its references."""
    return numba.njit(forceinline=True, **_SETTINGS)(function)


def _prefetch(typing: Any, array: Any, row: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = context.make_array(signature.args[0])(context, builder, args[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        (stride, *_) = cgutils.unpack_tuple(builder, of.strides)
        at = builder.gep(builder.bitcast(of.data, byte), [builder.mul(args[1], stride)])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [at, number(1), number(3), number(1)])  # to write, into all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), code


prefetch: Any = intrinsic(_prefetch)
"""In a loop, `prefetch(array, row)` has the processor fetch the beginning of a row, to be read and written."""


def _at(kind: Any, of: Any) -> Any:
    def typed(typing: Any, address: Any, n: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            first = builder.inttoptr(args[0], of.as_pointer())
            return builder.load(builder.gep(first, [args[1]]), align=1)

        return kind(types.int64, types.int64), code

    return intrinsic(typed)


integer_at: Any = _at(types.int64, ir.IntType(64))
short_at: Any = _at(types.int32, ir.IntType(32))
byte_at: Any = _at(types.uint8, ir.IntType(8))
single_at: Any = _at(types.float32, ir.FloatType())
"""In a loop, the n-th int64, int32, uint8 or float32 of those that begin at an address, be it aligned or not."""
