"""Partial sums of embeddings, exchanged between ranks so that gloo can do it in unequal shares.

B rows of this rank, D width.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torchrec.distributed.types import Awaitable, NoWait, QuantizedCommCodecs


class SumToOwners(nn.Module):
    """Sums the partial pooled embeddings over ranks and gives each rank its own rows.

    TorchRec does this by reduce-scatter, whose backward gloo does in equal shares only. Here every rank sends each its
    part, and sums what it gets in order of rank: no more bytes, any shares, and the same rounding always.
    """

    def __init__(self, group: dist.ProcessGroup, codecs: QuantizedCommCodecs | None = None):
        super().__init__()
        self._group, self._codecs = group, codecs

    def forward(self, partial: Tensor, input_splits: list[int] | None = None) -> Awaitable[Tensor]:
        """(rows of all ranks, D) -> (rows of this rank, D); `input_splits`: each rank's rows, equal if None."""
        ranks = self._group.size()
        if ranks == 1:
            return NoWait(partial)
        rows = input_splits or [len(partial) // ranks] * ranks
        return NoWait(_ExchangeAndSum.apply(partial, rows, self._group, self._codecs))


class _ExchangeAndSum(Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, rows: list[int], group: Any, codecs: Any) -> Tensor:
        ctx.rows, ctx.group, ctx.codecs = rows, group, codecs
        sent = codecs.forward.encode(partial) if codecs else partial
        mine = [rows[group.rank()]] * len(rows)
        got = _exchange(sent, rows, mine, group)
        got = codecs.forward.decode(got) if codecs else got
        return got.view(len(rows), mine[0], partial.shape[1]).sum(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sent = ctx.codecs.backward.encode(gradient) if ctx.codecs else gradient
        ranks = len(ctx.rows)
        got = _exchange(sent.repeat(ranks, 1), [len(gradient)] * ranks, ctx.rows, ctx.group)
        return (ctx.codecs.backward.decode(got) if ctx.codecs else got), None, None, None


def _exchange(sent: Tensor, to: list[int], frm: list[int], group: dist.ProcessGroup) -> Tensor:
    got = sent.new_empty(sum(frm), *sent.shape[1:])
    dist.all_to_all_single(got, sent.contiguous(), frm, to, group=group)
    return got
