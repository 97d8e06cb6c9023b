"""Which impression each feedback row belongs to, for one piece of the merged stream.

D distinct ids, I impressions and F feedback rows of the piece. Arrays of length D are indexed by an id's place in
`Ids.distinct`.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from streaming.hashing import hash64
from streaming.settlement.merge import END_OF_TIME

NONE = -1


class Ids(NamedTuple):
    """The distinct ids of a piece, and which of them each row carries."""

    distinct: pa.Array  # (D,)
    hashes: np.ndarray  # (D,) uint64
    of_impression: np.ndarray  # (I,) places in `distinct`
    of_feedback: np.ndarray  # (F,) places in `distinct`


class Known(NamedTuple):
    """The latest impression admitted before the piece under each id (D,): its number or NONE, and its key time."""

    number: np.ndarray
    key_time: np.ndarray


class Admitted(NamedTuple):
    """The impression admitted in the piece under each id (D,): its number or NONE, key time and merge order."""

    number: np.ndarray
    key_time: np.ndarray
    order: np.ndarray

    @property
    def ids(self) -> np.ndarray:
        """Places of the ids admitted in the piece."""
        return np.flatnonzero(self.number != NONE)


class Matches(NamedTuple):
    """N feedback rows (`merged_schema`) and, for each, its impression.

    number    (N,) of the impression
    resolved  (N,) the merge order at which row and impression had both come; rows count in that order
    """

    rows: pa.RecordBatch
    number: np.ndarray
    resolved: np.ndarray

    def with_more(self, other: Matches) -> Matches:
        return Matches(
            pa.concat_batches([self.rows, other.rows]),
            np.concatenate([self.number, other.number]),
            np.concatenate([self.resolved, other.resolved]),
        )


def resolve_ids(impressions: pa.RecordBatch, feedback: pa.RecordBatch) -> Ids:
    """Each distinct id is looked up and hashed once."""
    ids = pa.concat_arrays([impressions.column("impression_id"), feedback.column("impression_id")])
    encoded = cast(pa.DictionaryArray, ids.dictionary_encode())
    places = encoded.indices.to_numpy()
    count = impressions.num_rows
    return Ids(encoded.dictionary, hash64(encoded.dictionary), places[:count], places[count:])


def known_impressions(ids: Ids, place: np.ndarray, number: np.ndarray, key_time: np.ndarray) -> Known:
    """From what an index found: `number` and `key_time` of impressions of the ids at `place`, ascending for each id.

    An id has at most one admission within the horizon: the latest is the one known, if any is.
    """
    known = Known(np.full(len(ids.distinct), NONE), np.full(len(ids.distinct), -END_OF_TIME))
    known.number[place] = number
    known.key_time[place] = key_time
    return known


def admitted_impressions(
    ids: Ids, place: np.ndarray, number: np.ndarray, key_time: np.ndarray, order: np.ndarray
) -> Admitted:
    """From the impressions admitted: the place of each one's id, which no other one shares, and what is its own."""
    count = len(ids.distinct)
    admitted = Admitted(np.full(count, NONE), np.zeros(count, np.int64), np.full(count, NONE))
    admitted.number[place], admitted.key_time[place], admitted.order[place] = number, key_time, order
    return admitted


def match(
    feedback: pa.RecordBatch, ids: Ids, known: Known, admitted: Admitted, horizon_ms: int
) -> tuple[Matches, np.ndarray]:
    """Feedback belongs to the impression known when it came, else to one admitted in the piece, within the horizon.

    Returns the matches, and the indices of the feedback rows that have none.
    """
    of = ids.of_feedback
    key, order = (feedback.column(name).to_numpy() for name in ("key_time_ms", "order"))
    is_known = key - horizon_ms <= known.key_time[of]
    is_near = np.abs(key - admitted.key_time[of]) <= horizon_ms
    number = np.where(is_known, known.number[of], np.where(is_near, admitted.number[of], NONE))
    resolved = np.where(is_known, order, np.maximum(order, admitted.order[of]))
    found = np.flatnonzero(number != NONE)
    return Matches(feedback.take(pa.array(found)), number[found], resolved[found]), np.flatnonzero(number == NONE)
