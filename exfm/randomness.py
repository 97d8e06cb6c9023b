"""Random numbers that depend only on a seed and a name, never on other draws of the process; layers drawn from them.

A trunk may draw from torch's global generator (Dropout does). The n-th step of a model then draws from a generator
seeded by (key, n) alone, whatever other models of the process drew before, and however often the run was restarted:
two integers are the whole state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def named_generator(seed: int, name: str) -> torch.Generator:
    """A generator for one named part of a model; its numbers do not depend on any other part.

    >>> a, b = (torch.rand(1, generator=named_generator(0, "trunk")) for _ in range(2))
    >>> bool(a == b)
    True
    """
    return torch.Generator().manual_seed(_hashed(f"{seed}/{name}"))


class StepRandomness:
    """Random numbers of a model's steps. On several ranks each draws its own, and all have the same state.

    state   (2,) int64: the key, and the number of steps learned; write into it to load it

    torch's global generator belongs to the process, so no other thread may draw from it during a step.

    >>> random = StepRandomness(seed=1)
    >>> with random.step():
    ...     a = torch.rand(1)
    >>> with random.step():
    ...     b = torch.rand(1)
    >>> random.advance()
    >>> with random.step():
    ...     c = torch.rand(1)
    >>> bool(a == b), bool(a == c)
    (True, False)
    """

    def __init__(self, seed: int, rank: int = 0) -> None:
        self.state: Tensor = torch.tensor([_hashed(f"{seed}/steps"), 0], dtype=torch.int64)
        self._rank = rank

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context in which torch's global generator is the step's; restored on exit."""
        outside = torch.get_rng_state()
        key, steps = self.state.tolist()
        torch.default_generator.manual_seed(_hashed(f"{key}/{steps}/{self._rank}"))
        try:
            yield
        finally:
            torch.set_rng_state(outside)

    def parts(self, numbers: Iterable[int]) -> Iterator[int]:
        """These parts of a step's batch, one after the other; in each, torch's generator draws what belongs to the
        part, whoever computes the others."""
        word, outside = int(torch.randint(2**62, ())), torch.get_rng_state()
        try:
            for number in numbers:
                torch.default_generator.manual_seed(_hashed(f"{word}/{number}"))
                yield number
        finally:
            torch.set_rng_state(outside)

    def advance(self) -> None:
        """Count a learned step: the next one draws other numbers. Do not count a step that changed nothing."""
        self.state[1] += 1


def seeded_linear(n: int, m: int, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    """A map from n to m values with W ~ N(0, √(2/(m+n))) and b ~ N(0, √(1/m)), drawn from `generator`
    only, as in DLRM (arXiv 1906.00091)."""
    layer = nn.Linear(n, m, bias=bias, device="meta")  # or it would draw weights of its own first
    layer.weight = nn.Parameter(torch.empty(m, n).normal_(0.0, (2 / (m + n)) ** 0.5, generator=generator))
    if bias:
        layer.bias = nn.Parameter(torch.empty(m).normal_(0.0, (1 / m) ** 0.5, generator=generator))
    return layer


def seeded_mlp(n: int, sizes: Sequence[int], generator: torch.Generator, last_relu: bool = True) -> nn.Sequential:
    """Linear layers of the given output sizes with a ReLU after each; with `last_relu` also after the last one.

    No sizes: the identity.

    >>> seeded_mlp(13, (64, 16), torch.Generator())(torch.zeros(2, 13)).shape
    torch.Size([2, 16])
    """
    layers: list[nn.Module] = []
    for i, m in enumerate(sizes):
        layers.append(seeded_linear(n, m, generator))
        if last_relu or i < len(sizes) - 1:
            layers.append(nn.ReLU())
        n = m
    return nn.Sequential(*layers)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
