"""SipHash-2-4 of texts in UTF-8 (Aumasson and Bernstein 2012), with the key and the finaliser of pandas'
`util.hash_array`, and so with its hashes.

    v ← key;  v_3 ⊕= m, two rounds, v_0 ⊕= m  for every eight bytes m of the text, and for what is left with its length;
    v_2 ⊕= 255, four rounds;  hash = v_0 ⊕ v_1 ⊕ v_2 ⊕ v_3

Texts are read where Arrow has them: text n is the bytes from ends[n] to ends[n + 1]. Most of the time that pandas takes
is for the object that it needs of each.

N texts.
"""

from __future__ import annotations

import numpy as np

from exfm.kernels.hashing import mix
from exfm.kernels.loops import byte_at, inlined, integer_at, loop, short_at

_KEY = np.frombuffer(b"0123456789123456", "<u8")
_START = np.frombuffer(b"somepseudorandomlygeneratedbytes", ">u8").astype(np.uint64)
_V0, _V1, _V2, _V3 = _START ^ np.concatenate([_KEY, _KEY])
_ALL = np.uint64(255)


@inlined
def _turned(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@inlined
def _round(a, b, c, d):
    a, c = a + b, c + d
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a, c = _turned(a, 32) + d, c + b
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    return a, b, _turned(c, 32), d


@inlined
def _left(first, count):
    """The last `count` % 8 bytes of a text, of which the first is the lowest."""
    left = count & 7
    if count >= 8:
        return (np.uint64(integer_at(first + count - 8, 0)) >> np.uint64(8)) >> np.uint64(56 - 8 * left)
    word = np.uint64(0)
    for n in range(left):
        word |= np.uint64(byte_at(first, n)) << np.uint64(8 * n)
    return word


@inlined
def _hash(first, count):
    a, b, c, d = _V0, _V1, _V2, _V3
    for n in range(count >> 3):
        m = np.uint64(integer_at(first, n))
        d ^= m
        a, b, c, d = _round(a, b, c, d)
        a, b, c, d = _round(a, b, c, d)
        a ^= m
    m = (np.uint64(count) << np.uint64(56)) | _left(first, count)
    d ^= m
    a, b, c, d = _round(a, b, c, d)
    a, b, c, d = _round(a, b, c, d)
    a ^= m
    c ^= _ALL
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return mix(a ^ b ^ c ^ d)


@inlined
def _same(one, other, count):
    for n in range(count >> 3):
        if integer_at(one, n) != integer_at(other, n):
            return False
    return _left(one, count) == _left(other, count)


@loop("void(i8, i8, b1, u8[::1])")
def hash_texts(ends, texts, long, hashes_N):
    """`ends`: the address of N + 1 places among the bytes at `texts`, of 64 bits each where `long`, else of 32. A text
    that is the same as the one before is not hashed again."""
    if not len(hashes_N):  # there may be no ends either
        return
    start = integer_at(ends, 0) if long else np.int64(short_at(ends, 0))
    before, length = start, np.int64(-1)
    for n in range(len(hashes_N)):
        end = integer_at(ends, n + 1) if long else np.int64(short_at(ends, n + 1))
        if end - start == length and _same(texts + before, texts + start, length):
            hashes_N[n] = hashes_N[n - 1]
        else:
            length = end - start
            hashes_N[n] = _hash(texts + start, length)
        before, start = start, end
