"""Recent clicks of each user, in a log that is updated periodically.

Arrival times are cut into periods. At the begin b of a period all clicks up to b − jitter become known, together; an
impression that arrives in the period happened at b − jitter or later, so its list never holds a click that came after
it. Lost feedback is never known. Letters: N rows, S places of users, L clicks kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from streaming.sources.synthetic.population import Population
from streaming.sources.synthetic.world_config import GeneratorConfig

NONE = -1


class RecentClicks:
    """Categories of each user's last clicks, the most recent last, padded with `NONE`.

    Memory is that of the places, and of the clicks of one click delay.
    """

    def __init__(self, config: GeneratorConfig, users: Population) -> None:
        self._users, self._jitter_ms = users, config.jitter_ms
        self._every_ms = round(1000 * config.recent_every_s)
        self._last_SL = np.full((users.places, config.recent_clicks), NONE, np.int64)
        self._whose_S = users.ids.copy()
        self._waiting = np.empty((4, 0), np.int64)  # time, place, user, category

    def periods(self, arrival_N: np.ndarray) -> Iterator[slice]:
        """Split rows into periods; report a period's clicks before asking for the next."""
        period_N = arrival_N // self._every_ms
        starts = np.flatnonzero(np.diff(period_N, prepend=NONE))
        for start, stop in zip(starts, np.append(starts[1:], len(arrival_N)), strict=True):
            self._learn(int(period_N[start]) * self._every_ms - self._jitter_ms)
            yield slice(int(start), int(stop))

    def of(self, place_N: np.ndarray) -> np.ndarray:
        """Recent categories (N, L) of the users in these slots now."""
        theirs_N = self._whose_S[place_N] == self._users.ids[place_N]
        return np.where(theirs_N[:, None], self._last_SL[place_N], NONE)

    def clicked(self, time_N: np.ndarray, place_N: np.ndarray, category_N: np.ndarray) -> None:
        """Record clicks, which the log learns later."""
        more = np.stack([time_N, place_N, self._users.ids[place_N], category_N])
        self._waiting = np.concatenate([self._waiting, more], axis=1)

    def _learn(self, until_ms: int) -> None:
        due = self._waiting[0] <= until_ms
        time, place, user, category = self._waiting[:, due]
        self._waiting = self._waiting[:, ~due]
        here = np.flatnonzero(self._users.ids[place] == user)
        here = here[np.argsort(time[here], kind="stable")]
        # An assignment by index keeps one of several clicks of a place, so each round takes the first of each.
        while len(here):  # a click of every user, the oldest first
            at, first = np.unique(place[here], return_index=True)
            now = here[first]
            self._last_SL[at[self._whose_S[at] != user[now]]] = NONE
            self._whose_S[at] = user[now]
            self._last_SL[at] = np.concatenate([self._last_SL[at, 1:], category[now, None]], axis=1)
            here = np.delete(here, first)


def lists(recent_NL: np.ndarray) -> pa.ListArray:
    """Convert to lists without the padding.

    >>> lists(np.array([[NONE, 3, 4], [NONE, NONE, NONE]])).to_pylist()
    [[3, 4], []]
    """
    there = recent_NL != NONE
    ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(recent_NL[there]))
