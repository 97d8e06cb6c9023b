"""Ids that as-of features are to forget, and counts of what was removed."""

from __future__ import annotations

from typing import NamedTuple

AT_THE_END = 2**63 - 1
"""Key time behind the last row of a stream that has ended."""


class ForgottenId(NamedTuple):
    """An id that is forgotten: the `value` of a `column`, before the first row of key time `at_ms` or later. `number`:
    of the request."""

    number: int
    column: str
    value: int | str
    at_ms: int


class RemovedCounts(NamedTuple):
    """Counts of what was forgotten: `keys` of all tables, and `entries` of lists of other keys."""

    keys: int
    entries: int
