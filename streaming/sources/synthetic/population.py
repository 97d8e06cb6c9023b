"""Population of users and ads that come and go: slots held by one occupant after another.

A place has a Zipf rank, which its occupants inherit. Everything about an occupant (its identifier, how long it stays,
what it is like) is a hash of seed, place and how many were there before, so that memory is that of the places, whatever
the length of the stream, and the population at an instant does not depend on how one got there.
"""

from __future__ import annotations

import numpy as np

ID_BITS = 31


class Population:
    """S places, ranked, each with one occupant at a time.

    total: occupants expected over the whole span of `duration_ms`; they stay exp(`stay` · span) each.
    zipf, offset: the place of rank r is drawn in proportion to (r + offset) ** −zipf (Zipf–Mandelbrot).
    ids, keys, arrived_ms: of the present occupants, (S,). A key is what `uniform` and `normal` take.
    shares: of all draws, by place, (S,).

    >>> people = Population(total=1000, zipf=0.9, stay=0.8, duration_ms=1000.0, seed=1, kind=0)
    >>> before = people.ids.copy()
    >>> people.advance(500.0).size, bool(set(before) & set(people.ids))
    (219, True)
    """

    def __init__(
        self, *, total: int, zipf: float, offset: float = 0.0, stay: float, duration_ms: float, seed: int, kind: int
    ) -> None:
        self.places = max(1, round(total / (1 + 1 / stay)))
        self._stay_ms = stay * duration_ms
        self._salt = mix(np.array([seed * 4 + kind], np.uint64))
        weights = (np.arange(1, self.places + 1, dtype=np.float64) + offset) ** -zipf
        self.shares = weights / weights.sum()
        self._cumulative = np.cumsum(self.shares)
        self._generation = np.zeros(self.places, np.uint64)
        self.ids = np.empty(self.places, np.int64)
        self.keys = np.empty(self.places, np.uint64)
        self.arrived_ms = np.zeros(self.places)
        self.leaves_ms = np.zeros(self.places)
        self._settle_in(np.arange(self.places))
        self.arrived_ms += np.log(uniform(self.keys, 1)) * self._stay_ms

    def advance(self, now_ms: float) -> np.ndarray:
        """Replace occupants who have left by `now_ms` (since the start). Returns the places with a new occupant."""
        changed = np.zeros(self.places, bool)
        while (gone := np.flatnonzero(self.leaves_ms <= now_ms)).size:
            self.arrived_ms[gone] = self.leaves_ms[gone]
            self._generation[gone] += np.uint64(1)
            self._settle_in(gone)
            changed[gone] = True
        return np.flatnonzero(changed)

    def draw(self, uniform_N: np.ndarray) -> np.ndarray:
        """Places by Zipf rank, from uniform numbers in [0, 1): (N,) -> (N,) int64."""
        return np.minimum(np.searchsorted(self._cumulative, uniform_N, side="right"), self.places - 1)

    def _settle_in(self, place: np.ndarray) -> None:
        serial = self._generation[place] * np.uint64(self.places) + place.astype(np.uint64)
        self.ids[place] = scramble(serial, ID_BITS)
        self.keys[place] = mix(serial + self._salt)
        self.leaves_ms[place] = self.arrived_ms[place] - np.log(uniform(self.keys[place], 0)) * self._stay_ms


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(keys_N: np.ndarray, field: int) -> np.ndarray:
    """A uniform number in (0, 1) for each key, another for each field."""
    hashed = mix(keys_N + np.uint64((field + 1) * 0x9E3779B97F4A7C15 % 2**64))
    return ((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normal(keys_N: np.ndarray, field: int) -> np.ndarray:
    """A standard normal number for each key, another for each field (Box-Muller)."""
    radius = np.sqrt(-2 * np.log(uniform(keys_N, 2 * field)))
    return radius * np.cos(2 * np.pi * uniform(keys_N, 2 * field + 1))


def scramble(serial_N: np.ndarray, bits: int) -> np.ndarray:
    """A bijection of the integers of `bits` bits: neighbours end far apart, nothing collides.

    >>> numbers = scramble(np.arange(100_000), 31)
    >>> len(set(numbers)), int(numbers.min()) >= 0, int(numbers.max()) < 2**31
    (100000, True, True)
    """
    mask, half = np.uint64(2**bits - 1), np.uint64(bits // 2)
    x = (serial_N.astype(np.uint64) + np.uint64(1)) & mask
    for odd in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93):
        x = (x * np.uint64(odd)) & mask
        x ^= x >> half
    return x.astype(np.int64)
