"""The loop over Arrow's texts has pandas' hashes, of every text and every way that Arrow holds it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exfm.features.transforms import hash64

TEXTS = st.text(max_size=40) | st.sampled_from(["", "\0", "\0" * 8, "a\0", "ß", "новый", "🙂" * 5, "x" * 300_001])
KINDS = [pa.string(), pa.large_string()]


def by_pandas(texts: list[str]) -> list[int]:
    return list(
        pd.util.hash_array(np.array([*texts, ""], object), categorize=False)[:-1].tolist()
    )  # never an empty array


@given(st.lists(TEXTS, max_size=12), st.sampled_from(KINDS), st.integers(0, 12), st.integers(0, 12))
def test_texts_have_the_hashes_of_pandas(texts: list[str], kind: pa.DataType, start: int, stop: int) -> None:
    column = pa.array(texts, kind)
    assert hash64(column).tolist() == by_pandas(texts)
    assert hash64(column[start:stop]).tolist() == by_pandas(texts[start:stop])


@pytest.mark.parametrize("kind", KINDS)
def test_every_length_and_every_place_of_a_word_count(kind: pa.DataType) -> None:
    """Texts that differ in one byte, or in a NUL at the end, next to each other and next to themselves."""
    base = "abcdefghijklmnopqrstuvwxyz"
    texts = [base[:n] for n in range(27)] + [base[:n] + "\0" for n in range(27)]
    texts += [base[:n] + "!" + base[n + 1 :] for n in range(26)]
    twice = [text for text in texts for _ in range(2)]
    assert hash64(pa.array(twice, kind)).tolist() == by_pandas(twice)
    assert len(set(by_pandas(texts))) == len(set(texts))


def test_what_follows_a_text_does_not_matter() -> None:
    """Of a buffer that other texts follow in, each text has the hash that it has alone."""
    whole = "0123456789" * 3
    for count in range(1, 12):
        pieces = [whole[n : n + count] for n in range(0, 24, count)]
        assert hash64(pa.array(pieces)).tolist() == [hash64(pa.array([piece])).item() for piece in pieces]


@pytest.mark.parametrize("kind", KINDS)
def test_a_null_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match="ids must not be null: 1 of 2 are"):
        hash64(pa.array(["a", None], kind))
