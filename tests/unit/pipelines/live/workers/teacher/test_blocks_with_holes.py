"""What ranks of a teacher conclude where rows of the lake are erased: nothing is missed, and nothing is waited for."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.live.workers.teacher.block import BlockOffer, Learn, TakeFromLake, conclude
from streaming.errors import StreamingError
from streaming.lake.erasure.holes import Holes


def offer(number: int, first: int, last: int, rows: int) -> BlockOffer:
    return BlockOffer(number, first, last, False, np.array([rows]), np.array([7]))


def test_rows_that_are_erased_before_a_block_are_not_missed():
    offers = [offer(number=3, first=12, last=19, rows=8)]
    assert isinstance(conclude(offers, 9, 2, None, Holes([(10, 11)])), Learn)
    assert conclude(offers, 9, 2, None, Holes([(10, 10)])) == TakeFromLake(11, 2)


def test_a_block_has_all_rows_but_those_that_are_erased():
    offers = [offer(number=3, first=10, last=19, rows=7)]
    assert isinstance(conclude(offers, 9, 2, None, Holes([(12, 14)])), Learn)
    with pytest.raises(StreamingError, match="block 3 has 7 rows on the examples topic, lake_seq 10 to 19 make 9"):
        conclude(offers, 9, 2, None, Holes([(12, 12)]))
