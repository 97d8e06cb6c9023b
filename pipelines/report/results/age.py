"""NE of every model over the stream, by tenths of the lake.

An average over the stream hides its beginning, where models are young. The running base rate and FTRL (where a run has
them) say what a model has to beat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from exfm.metrics.classification import normalised_entropy
from exfm.metrics.limits import too_few
from pipelines.report.results.figures import Columns, TaskFigures, TenthFigures

TENTHS = 10
MARGIN = 0.01
"""A model is called worse where its NE is above the other's by more than this share: less is no news."""

NAMES = {"student": "the student", "no_teacher": "its twin", "teacher": "the teacher"}
TO_BEAT = {"constant": "the running base rate", "ftrl": "FTRL"}


def by_tenth(columns: Columns, lake_rows: int) -> list[TenthFigures]:
    """Figures by tenth of a lake of `lake_rows`."""
    tenth = columns.lake_seq * TENTHS // max(1, lake_rows)
    tenths = []
    for n in range(TENTHS):
        part = columns.take(np.flatnonzero(tenth == n))
        rows, positives = len(part.labels), int(part.labels.sum())
        logits = part.logits if too_few(positives, rows - positives) is None else {}
        ne = {model: normalised_entropy(z, part.labels, part.weights) for model, z in logits.items()}
        tenths.append(TenthFigures(rows=rows, positives=positives, **ne))
    return tenths


def worse_by_age(tasks: Mapping[str, TaskFigures]) -> str | None:
    """Describe where a student's model is worse than the running base rate or FTRL; None if nowhere.

    >>> from pipelines.report.results.figures import WindowFigures
    >>> def by_age(*student_and_teacher):
    ...     tenths = [TenthFigures(rows=900, positives=90, student=s, teacher=t, constant=1.0, ftrl=0.95)
    ...               for s, t in student_and_teacher]
    ...     half = WindowFigures(rows=4500, positives=450)
    ...     return TaskFigures(rows=9000, positives=900, last_half=half, by_tenth=tenths)
    >>> worse_by_age({"ctr": by_age((1.3, 5.4), (0.99, 1.1), *8 * [(0.9, 0.9)])})  # doctest: +NORMALIZE_WHITESPACE
    'on ctr the student is worse than the running base rate in the first 10 % of the stream, and than FTRL in the first
    20 %; the teacher is worse than the running base rate in the first 20 % of the stream, and than FTRL in the first
    20 %'
    >>> worse_by_age({"ctr": by_age(*10 * [(0.9, 0.9)])}) is None
    True
    """
    clauses = [words for task, result in tasks.items() for words in _worse(task, result.by_tenth)]
    return "; ".join(clauses) or None


def _worse(task: str, tenths: Sequence[TenthFigures]) -> Iterator[str]:
    where = f"on {task} "
    for model, name in NAMES.items():
        clauses: list[str] = []
        for other, than in TO_BEAT.items():
            pairs = [(tenth.ne.get(model), tenth.ne.get(other)) for tenth in tenths]
            worse = [n for n, (a, b) in enumerate(pairs) if a is not None and b is not None and a > b * (1 + MARGIN)]
            if worse:
                clauses.append(f"than {than} {_when(worse, '' if clauses else ' of the stream')}")
        if clauses:
            yield f"{where}{name} is worse {', and '.join(clauses)}"
            where = ""


def _when(tenths: list[int], of: str) -> str:
    """Tenths, from 0, in words.

    >>> _when([0, 1], " of the stream"), _when([3], ""), _when([0, 4, 7], "")
    ('in the first 20 % of the stream', 'from 30 to 40 %', 'in 3 of 10 tenths, the first from 0 to 10 %')
    """
    first, last = tenths[0], tenths[-1]
    if last - first + 1 == len(tenths):
        return (
            f"in the first {10 * (last + 1)} %{of}" if first == 0 else f"from {10 * first} to {10 * (last + 1)} %{of}"
        )
    return f"in {len(tenths)} of 10 tenths{of}, the first from {10 * first} to {10 * (first + 1)} %"
