"""Bad-row quarantine: find and skip the rows that make a step non-finite (bisection).

    1. rows with an input beyond LARGEST_INPUT, or a weight beyond it, are left out before the step
    2. where the step is not finite all the same: rows whose own logits are not finite are left out, and it is repeated
    3. where that is not enough: halves of the batch are tried, without learning, down to the single rows that spoil
       every part that they are in

What is left is learned as a batch of these rows alone would be: to the same bits as if the others had never been there.
Where nothing is left, where rows spoil the step together only, or more than MOST_TRIES parts would have to be tried,
the batch is left out whole. All of it follows from the rows and the model's state, so a resumed run and a replay leave
out the same.

B rows of a batch (of this rank), T tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from exfm.features.batch import Batch
from exfm.features.dense import LARGEST_INPUT
from exfm.step import INPUT, LARGEST, LOGIT, StepResult, reason_of

if TYPE_CHECKING:
    from exfm.parallel.group import RankGroup

MOST_TRIES = 128
"""Parts of one batch that are tried. One bad row among 2,048 takes 22."""


class Learner(Protocol):
    """A model that changes nothing if a step is not finite. On several ranks every method is a collective."""

    def train_step(self, batch: Batch) -> StepResult: ...
    def try_step(self, batch: Batch) -> StepResult: ...  # the step, without learning
    def score(self, batch: Batch) -> np.ndarray: ...


def spoiled_inputs(batch: Batch) -> np.ndarray | None:
    """Mask (B,) int8 of unusable rows: INPUT for an input or a weight outside the accepted range, else 0; None if there
    are none.

    What is refused at ingestion is not here: such rows are of lakes before that was so, or of a student that came
    later and reads a column with another transform."""
    borne = (batch.dense.abs() <= LARGEST_INPUT).all(1) & (batch.weights.abs() <= LARGEST_INPUT)
    if batch.raw is not None:
        borne &= ~batch.raw.isinf().any(1)
    return None if borne.all() else np.where(borne.cpu().numpy(), 0, INPUT).astype(np.int8)


def rows_of(batch: Batch, mask: np.ndarray) -> Batch:
    """The rows of a batch that are True in (B,)."""
    return batch.only(torch.from_numpy(mask).to(batch.dense.device))


def learn_good_rows(model: Learner, batch: Batch, failed: StepResult, group: RankGroup | None = None) -> StepResult:
    """Learn the good rows of a batch whose step `failed`; returns the failed step if no rows can be learned."""
    left_out = np.zeros(len(batch), np.int8)
    left_out[~(np.abs(model.score(batch)) < LARGEST).all(1)] = LOGIT
    if (result := _without(model, batch, left_out, failed, group)) is not None:
        return result
    spoiling = _spoiling(model, batch, np.flatnonzero(left_out == 0), group)
    if spoiling is None or not _total(len(spoiling), group):
        return failed
    left_out[list(spoiling)] = list(spoiling.values())
    result = _without(model, batch, left_out, failed, group)
    return failed if result is None else result


def _spoiling(model: Learner, batch: Batch, rows: np.ndarray, group: RankGroup | None) -> dict[int, int] | None:
    """Rows that cannot be learned by themselves, with the reason of each; together, all of them cannot. None where that
    takes too long to find out."""
    first, total = _place(len(rows), group)
    reasons: dict[int, int] = {}
    parts, tries = [(0, total)], 0  # of the rows of all ranks
    while parts:
        start, stop = parts.pop()
        middle = (start + stop) // 2
        for part in ((start, middle), (middle, stop)) if stop - start > 1 else ():
            mine = rows[max(part[0] - first, 0) : max(part[1] - first, 0)]
            if tries == MOST_TRIES:
                return None
            tries += 1
            tried = model.try_step(rows_of(batch, np.isin(np.arange(len(batch)), mine)))
            if not tried.finite and part[1] - part[0] > 1:
                parts.append(part)
            elif not tried.finite:
                reasons |= dict.fromkeys(mine.tolist(), reason_of(tried))
    return reasons


def spread(result: StepResult, batch: Batch, left_out: np.ndarray | None) -> StepResult:
    """The result of a step over those rows of a batch that are 0 in `left_out` (B,), as one of the whole batch."""
    if left_out is None:
        return result
    reasons = left_out.copy()
    if result.left_out is not None:
        reasons[left_out == 0] = result.left_out
    wide = None if result.wide is None else _over(result.wide, batch, left_out)
    return result._replace(logits=_over(result.logits, batch, left_out), wide=wide, left_out=reasons)


def _over(logits: np.ndarray, batch: Batch, left_out: np.ndarray) -> np.ndarray:
    """Logits (·, T) of the own rows that are 0 in `left_out` (B,), over all own rows of a batch: NaN elsewhere."""
    learned = left_out[batch.own_places] == 0
    whole = np.full((len(learned), logits.shape[1]), np.nan, np.float32)
    whole[learned] = logits
    return whole


def _without(
    model: Learner, batch: Batch, left_out: np.ndarray, failed: StepResult, group: RankGroup | None
) -> StepResult | None:
    """The batch learned without some rows; None where there are none, nothing else is there, or it is not finite."""
    count = _total(np.count_nonzero(left_out), group)
    if not count or count == _total(len(left_out), group):
        return None
    result = model.train_step(rows_of(batch, left_out == 0))
    if not result.finite:
        return None
    return spread(result, batch, left_out)._replace(left_out_rows=failed.left_out_rows + count)


def _total(count: np.integer[Any] | int, group: RankGroup | None) -> int:
    """The sum over ranks. A collective."""
    return int(count) if group is None else int(group.sum(torch.tensor(count, device=group.device)))


def _place(count: int, group: RankGroup | None) -> tuple[int, int]:
    """Count of the rows of the ranks before this one, and of all ranks. A collective."""
    if group is None:
        return 0, count
    counts = torch.zeros(group.world_size, dtype=torch.int64, device=group.device)
    counts[group.rank] = count
    counts = group.sum(counts).cpu()
    return int(counts[: group.rank].sum()), int(counts.sum())
