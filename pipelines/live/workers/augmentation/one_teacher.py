"""One teacher in memory that the ranks of a machine share: rank 0 loads each snapshot into it, the others look only.

    rank 0   lends   a file without a name, in memory, that holds all weights
    others   borrow  the same file, by rank 0's process and its number there; on another machine there is none

It is gone with the last process that has it.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor

WORD_BYTES = ALIGNMENT = 64
"""The file begins with a word by which it is known, and so does no other; every tensor begins at a multiple."""

log = logging.getLogger(__name__)


class Lent(NamedTuple):
    """A file in a process's memory: whose, its number there, the word (hexadecimal) that it begins with."""

    process: int
    number: int
    word: str


def lend(weights: Sequence[Tensor]) -> Lent | None:
    """Move the weights of this process to memory that others can borrow; None where this machine has none of the kind.

    >>> mine, theirs = [torch.ones(3), torch.zeros(2, 2)], [torch.zeros(3), torch.zeros(2, 2)]
    >>> lent = lend(mine)
    >>> borrow(theirs, lent), borrow(theirs, lent._replace(word="00" * WORD_BYTES))
    (True, False)
    >>> mine[1] += 5.0
    >>> theirs
    [tensor([1., 1., 1.]), tensor([[5., 5.],
            [5., 5.]])]
    """
    word = secrets.token_bytes(WORD_BYTES)
    with ExitStack() as failing:
        try:
            number = os.memfd_create("exfm-teacher")
            failing.callback(os.close, number)
            os.truncate(number, _size(weights))
            os.pwrite(number, word, 0)
            places = _places(weights, number)
        except OSError as error:
            log.info("each rank has a teacher of its own: no memory that they could share (%s)", error)
            return None
        failing.pop_all()  # it is open for as long as this process lives
    for weight, place in zip(weights, places, strict=True):
        if weight.any():
            place.copy_(weight.detach())
        weight.data = place
    return Lent(os.getpid(), number, word.hex())


def borrow(weights: Sequence[Tensor], lent: Lent) -> bool:
    """Replace the weights of this process, of the same shapes, by those that were lent; False where they are on another
    machine, or not within reach."""
    try:
        with open(f"/proc/{lent.process}/fd/{lent.number}", "r+b", buffering=0) as file:
            number = file.fileno()
            if os.pread(number, WORD_BYTES, 0).hex() != lent.word or os.fstat(number).st_size != _size(weights):
                log.info("the teacher is loaded here too: rank 0 is on another machine")
                return False
            places = _places(weights, number)
    except OSError as error:  # there it is another process's, and may be no file
        log.info("the teacher is loaded here too: rank 0's is not within reach (%s)", error)
        return False
    for weight, place in zip(weights, places, strict=True):
        weight.data = place
    return True


def _size(weights: Sequence[Tensor]) -> int:
    return WORD_BYTES + sum(_room(weight) for weight in weights)


def _room(weight: Tensor) -> int:
    return math.ceil(weight.nbytes / ALIGNMENT) * ALIGNMENT


def _places(weights: Sequence[Tensor], number: int) -> list[Tensor]:
    """Tensors of these shapes in a file, one behind the other."""
    memory, at, places = mmap.mmap(number, _size(weights)), WORD_BYTES, []
    for weight in weights:
        place = torch.empty_like(weight)
        if weight.numel():
            place = torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=at).view(weight.shape)
        places.append(place)
        at += _room(weight)
    return places
