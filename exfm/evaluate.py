"""Progressive validation with delayed labels: the protocol under every figure of a student.

    event time     shown              label settles
                     │                      │
    a row            ▼ predicted  · · · · · ▼ learned       judged by the prediction, which is never made again

A row is predicted when it is shown, by the model that has learned what had settled by then. Its label settles a window
later; then the row is learned. So no prediction knows its own label, nor anything else that was still open.

Without the delay a row is predicted just before it is learned, *as learned*: a live student's step. It knows what other
rows said within the window, which a server could not. Replays are judged with the delay.

Sources: progressive validation is of Blum, Kalai and Langford, "Beating the hold-out" (COLT 1999); with delayed labels
it is in river's `evaluate.progressive_val_score`, whose `moment` and `delay` these are.

n rows of a batch, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

BEFORE_ALL = -(2**62)
"""An event time before all others."""


class _HasLogits(Protocol):
    @property
    def logits(self) -> np.ndarray:
        """(n, T), made before the rows were learned."""


J = TypeVar("J", bound=_HasLogits, covariant=True)  # the result of a model's step


class OnlineModel(Protocol[J]):
    """A model that is judged while it learns, such as an `exfm.models.engine.StudentEngine`."""

    def score(self, batch: Any) -> np.ndarray:
        """Logits (n, T), without learning."""

    def step(self, batch: Any) -> J:
        """Score a batch, then learn it."""


class IndexedBatch(NamedTuple):
    """Rows of a stream that are predicted or learned together.

    batch       of the type that the model takes
    rows        (n,) int64, their numbers in the stream; of the student's own, where a batch has others in addition
    settled_ms  event time at which the last of their labels had settled
    learned     False: rows that are only predicted, such as negatives that sampling left out
    """

    batch: Any
    rows: np.ndarray
    settled_ms: int = BEFORE_ALL
    learned: bool = True


class LabelDelay(NamedTuple):
    """Rows of a stream in the order in which they were shown, which is not that in which their labels settle.

    shown_ms  (N,) int64, ascending event times
    between   `between(start, stop)`: rows `start` to `stop` of that order, in one or several batches
    """

    shown_ms: np.ndarray
    between: Callable[[int, int], Iterable[IndexedBatch]]


class Prediction(NamedTuple, Generic[J]):
    """Logits (n, T), made before any of these rows was learned.

    judged  result of the step that learned them; None: they were only scored
    shown   True: predicted when they were shown; False: when their labels had settled
    """

    scored: IndexedBatch
    logits: np.ndarray
    judged: J | None
    shown: bool


def progressive(
    student: OnlineModel[J], stream: Iterable[IndexedBatch], delay: LabelDelay | None = None
) -> Iterator[Prediction[J]]:
    """Predict every row when it is shown, wait for its label, learn it once that has settled.

    `stream`: rows in the order in which their labels settle. `delay`: the same rows in the order in which they were
    shown. None: rows are predicted just before they are learned, only; predictions of a delay come in addition.

    >>> from types import SimpleNamespace
    >>> class Counter:  # predicts how many rows it has learned
    ...     learned = 0
    ...     score = lambda self, batch: np.full(len(batch), self.learned)
    ...     def step(self, batch):
    ...         logits, self.learned = self.score(batch), self.learned + len(batch)
    ...         return SimpleNamespace(logits=logits)
    >>> one = lambda n: IndexedBatch([n], np.array([n]), settled_ms=1000 * n + 2500)  # 2.5 s after it was shown
    >>> delay = LabelDelay(np.arange(6) * 1000, lambda start, stop: map(one, range(start, stop)))  # a row a second
    >>> [int(p.logits[0]) for p in progressive(Counter(), map(one, range(6)))]
    [0, 1, 2, 3, 4, 5]
    >>> [int(p.logits[0]) for p in progressive(Counter(), map(one, range(6)), delay) if p.shown]
    [0, 0, 0, 1, 2, 3]
    """
    predicted, settled_ms = 0, BEFORE_ALL
    for labelled in stream:
        if delay is not None and labelled.learned:  # first what was shown before all of these labels had settled
            settled_ms = max(settled_ms, labelled.settled_ms)
            start, predicted = predicted, int(np.searchsorted(delay.shown_ms, settled_ms, side="right"))
            for some in delay.between(start, predicted):
                yield Prediction(some, student.score(some.batch), None, shown=True)
        judged = student.step(labelled.batch) if labelled.learned else None
        logits = student.score(labelled.batch) if judged is None else judged.logits
        yield Prediction(labelled, logits, judged, shown=False)
    for some in () if delay is None else delay.between(predicted, len(delay.shown_ms)):
        yield Prediction(some, student.score(some.batch), None, shown=True)
