"""HSTU (arXiv 2402.17152): a stack of attention layers over a sequence of events, without softmax.

    U, V, Q, K = split( φ( f₁(LN X) ) )                            φ = SiLU
    A = φ( Q Kᵀ + rab ) / n                                        causal; rab: biases of relative place and time
    Y = f₂( LN(A V) ⊙ U ) + X

Without a softmax the strength of a preference survives: twice as many events of a kind weigh twice as much. n is the
longest sequence's length, a constant. Of the last layer only the last token of each row is computed: the candidate's.

B rows, N tokens of all rows one after the other, L longest sequence, H heads, D width, K width of a head (D / H).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as nnf
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from exfm.errors import ConfigError
from exfm.features.events import EventTokens
from exfm.features.sparse import GAPS, EventFeature
from exfm.randomness import seeded_linear

TIMES = GAPS
"""Buckets of a time between two tokens."""

ROWS_TOGETHER = 256
"""Rows of near lengths that are attended together, padded to the longest of them."""


class SequenceModel(BaseModel):
    """A model over the earlier events of a row's key.

    >>> SequenceModel(of="user_id", events=("ad_id",)).length
    64
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["hstu", "attention"] = Field(
        default="hstu", description="`hstu`, or causal softmax `attention` with a feed-forward part"
    )
    of: str = Field(description="the column whose value's earlier impressions are read, such as user_id")
    events: tuple[str, ...] = Field(min_length=1, description="int64 columns that say what an event was, such as ad_id")
    having: str | None = Field(
        default=None, description="a task: only events with its label, once it has come, such as clicks; null: all"
    )
    as_of: Literal["shown", "settlement"] = Field(
        default="shown",
        description="which feedback on those events is read: what had come when the row was `shown`; or, of a teacher "
        "of a sweep alone, all by the row's own `settlement`, which no served model could have known: privileged",
    )
    length: int = Field(default=64, gt=0, le=1024, description="how many of the last events are read")
    layers: int = Field(default=1, gt=0, description="attention layers, one on the other")
    heads: int = Field(default=2, gt=0, description="heads of a layer, which share its width")
    width: int = Field(default=32, gt=0, description="width of a token")

    @model_validator(mode="after")
    def _consistent(self) -> SequenceModel:
        if self.width % self.heads:
            raise ConfigError(f"sequence: width {self.width} is no multiple of heads {self.heads}")
        if self.having is not None and self.privileged:
            raise ConfigError(
                f"sequence: events having `{self.having}` are listed once its label has come, and as_of `settlement` "
                "lists all that were shown; leave one of them out"
            )
        return self

    @property
    def privileged(self) -> bool:
        """True if it reads what no served model could have known."""
        return self.as_of == "settlement"


class HSTULayer(nn.Module):
    """One layer: (N, D) tokens -> (N, D), or with `last` (B, D) of the last token of each row.

    >>> layer = HSTULayer(8, heads=2, length=4, generator=torch.Generator())
    >>> layer(torch.zeros(5, 8), Sequences(torch.tensor([2, 3]), torch.zeros(5)), last=True).shape
    torch.Size([2, 8])
    """

    def __init__(self, width: int, *, heads: int, length: int, generator: torch.Generator, softmax: bool = False):
        super().__init__()
        self.heads, self.n, self.softmax = heads, length, softmax
        self.norm = nn.LayerNorm(width)
        self.f1 = seeded_linear(width, 4 * width, generator)
        self.f2 = seeded_linear(width, width, generator)
        self.mixed_norm = nn.LayerNorm(width)
        self.place = nn.Parameter(torch.zeros(heads, length + 1))
        self.time = nn.Parameter(torch.zeros(heads, TIMES))

    def forward(self, X: Tensor, at: Sequences, *, last: bool = False) -> Tensor:
        D = X.shape[1]
        V, K, Q, U = nnf.silu(self.f1(self.norm(X))).split(D, dim=1)
        if last:
            Q, U, X = Q[at.ends], U[at.ends], X[at.ends]
        mixed = at.restore([self.attend(Q, K, V, group, last) for group in at.groups], last)
        return self.f2(self.mixed_norm(mixed) * U) + X

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, at: Group, last: bool) -> Tensor:
        """A V of a group of rows, packed: (tokens or rows, D)."""
        G, L, H = *at.tokens.shape, self.heads
        k = K[at.tokens].view(G, L, H, -1).permute(0, 2, 3, 1)
        v = V[at.tokens].view(G, L, H, -1).transpose(1, 2)
        if last:
            q = Q[at.rows].view(G, 1, H, -1).transpose(1, 2)
            back, gap, seen = at.back.unsqueeze(1), at.age.unsqueeze(1), at.there.unsqueeze(1)
        else:
            q = Q[at.tokens].view(G, L, H, -1).transpose(1, 2)
            back = (at.back.unsqueeze(1) - at.back.unsqueeze(2)).clamp(min=0)
            gap = at.age.unsqueeze(1) - at.age.unsqueeze(2)
            seen = at.there.unsqueeze(1) & (at.back.unsqueeze(1) >= at.back.unsqueeze(2))
        rab = self.place[:, back].transpose(0, 1) + self.time[:, bucket(gap)].transpose(0, 1)
        if self.softmax:
            scores = q @ k / k.shape[2] ** 0.5 + rab
            A = torch.softmax(scores.masked_fill(~seen.unsqueeze(1), torch.finfo(scores.dtype).min), dim=3)
        else:
            A = nnf.silu(q @ k + rab) * seen.unsqueeze(1) / self.n
        mixed = (A @ v).transpose(1, 2).reshape(G, -1, H * v.shape[3])
        return mixed.squeeze(1) if last else mixed[at.there]


def bucket(seconds: Tensor) -> Tensor:
    """⌊log₂(1 + s)⌋, of 0 or more seconds."""
    return torch.log2(1 + seconds.clamp(min=0)).long().clamp(max=TIMES - 1)


class Group:
    """Rows of near lengths: `rows` (G,), `tokens` (G, L) with `there`, `back` (0: the last) and `age` of each."""

    def __init__(self, rows: Tensor, lengths: Tensor, ends: Tensor, age: Tensor) -> None:
        L = int(lengths[rows].max())
        self.rows = rows
        self.back = torch.arange(L - 1, -1, -1, device=rows.device).expand(len(rows), L)
        self.there = self.back < lengths[rows].unsqueeze(1)
        self.tokens = torch.where(self.there, ends[rows].unsqueeze(1) - self.back, ends[rows].unsqueeze(1))
        self.age = age[self.tokens]


class Sequences:
    """Rows of tokens: `ends` (B,) is the last of each, and `groups` are rows of near lengths."""

    def __init__(self, lengths: Tensor, age: Tensor) -> None:
        self.ends = lengths.cumsum(0) - 1
        order = torch.argsort(lengths, stable=True)
        self.groups = [Group(rows, lengths, self.ends, age) for rows in order.split(ROWS_TOGETHER)]

    def restore(self, of_groups: list[Tensor], last: bool) -> Tensor:
        """Put the results of groups back into the order of tokens, or of rows."""
        at = torch.cat([group.rows if last else group.tokens[group.there] for group in self.groups])
        return torch.cat(of_groups)[torch.argsort(at)]


class SequenceNet(nn.Module):
    """Tokens to one embedding of each row: ((N, I · E), tokens) -> (B, width out)."""

    def __init__(self, cfg: SequenceModel, feature: EventFeature, width: int, generator: torch.Generator):
        super().__init__()
        D = cfg.width
        self.enter = seeded_linear(len(feature.items) * width, D, generator)
        self.action = nn.Parameter(torch.empty(feature.actions, D).normal_(0.0, D**-0.5, generator=generator))
        self.age = nn.Parameter(torch.zeros(TIMES, D))
        self.layers = nn.ModuleList(
            HSTULayer(D, heads=cfg.heads, length=cfg.length, generator=generator, softmax=cfg.kind == "attention")
            for _ in range(cfg.layers)
        )
        self.norm = nn.LayerNorm(D)
        self.leave = seeded_linear(D, width, generator)

    def forward(self, ids_NE: Tensor, events: EventTokens) -> Tensor:
        if not len(events.lengths):
            return ids_NE.new_zeros(0, self.leave.out_features)
        X = self.enter(ids_NE) + self.action[events.actions] + self.age[bucket(events.age_s)]
        at = Sequences(events.lengths, events.age_s)
        *before, final = self.layers
        for layer in before:
            X = layer(X, at)
        return self.leave(self.norm(final(X, at, last=True)))
