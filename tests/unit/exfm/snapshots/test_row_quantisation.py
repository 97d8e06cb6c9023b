"""Rows in few bits, each with the range that loses least."""

from __future__ import annotations

import pytest
import torch

from exfm.errors import ModelError
from exfm.snapshots.row_quantisation import dequantise_rows, quantise_rows, row_bytes


def rows() -> torch.Tensor:
    return torch.randn(300, 64, generator=torch.Generator().manual_seed(1)) * 0.1


def plainly(values: torch.Tensor, bits: int) -> torch.Tensor:
    """In fp32 steps of each row's whole range."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    scale = (high - low) / (2**bits - 1)
    return ((values - low) / scale).round() * scale + low


@pytest.mark.parametrize(("bits", "least_gain"), [(8, -0.02), (4, 0.03), (3, 0.1), (2, 0.2)])
def test_a_fitted_range_loses_less_than_the_whole_one_the_fewer_bits_the_more(bits, least_gain):
    lost = (dequantise_rows(quantise_rows(rows(), bits), bits) - rows()).square().mean().sqrt()
    plain = (plainly(rows(), bits) - rows()).square().mean().sqrt()
    assert lost < plain * (1 - least_gain)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_rows_of_one_value_and_no_rows_come_back(bits):
    alike = torch.full((3, 8), 0.25)
    assert torch.equal(dequantise_rows(quantise_rows(alike, bits), bits), alike)
    assert dequantise_rows(quantise_rows(torch.zeros(0, 8), bits), bits).shape == (0, 8)
    assert quantise_rows(alike, bits).shape == (3, row_bytes(8, bits))


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_a_row_far_from_zero_keeps_to_its_range(bits):
    """The range's ends are rounded to fp16, and no value leaves them by more than that."""
    far = rows() + 3
    found = dequantise_rows(quantise_rows(far, bits), bits)
    assert found.amin() >= far.amin() - 2**-8
    assert found.amax() <= far.amax() + 2**-8


def test_values_that_fill_no_whole_bytes_are_refused_with_both_numbers():
    with pytest.raises(ModelError, match="2 columns of 3 bits are 6 bits"):
        quantise_rows(torch.zeros(1, 2), 3)
