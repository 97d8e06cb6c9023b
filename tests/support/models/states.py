"""Comparing what models hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """To the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
