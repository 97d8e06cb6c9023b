"""Random numbers that depend only on a seed and a name, never on other draws of the process.

A trunk may draw from torch's global generator (Dropout does). The n-th step of a model then draws from a generator
seeded by (key, n) alone, whatever other models of the process drew before, and however often the run was restarted:
two integers are the whole state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


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

    def advance(self) -> None:
        """Count a learned step: the next one draws other numbers. Do not count a step that changed nothing."""
        self.state[1] += 1


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
