"""A state as tensors by name, and its fit to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.snapshots.windows import TensorPieces, TensorSource, fill_window, windows_of

S = TypeVar("S")


def under(name: str, tensors: Mapping[str, S]) -> dict[str, S]:
    """The tensors called `<name>/…`, without that prefix."""
    return {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}


def check_fit(model: Mapping[str, torch.Size | tuple[int, ...]], state: Mapping[str, TensorSource]) -> None:
    """Raise ModelError unless a state has exactly the model's tensors, by name and shape."""
    wrong = sorted(
        name
        for name in model.keys() | state.keys()
        if name not in model or name not in state or model[name] != state[name].shape
    )
    if wrong:
        name = wrong[0]
        saved = tuple(state[name].shape) if name in state else "absent"
        mine = tuple(model[name]) if name in model else "absent"
        raise ModelError(
            f"{len(wrong)} of {len(model.keys() | state.keys())} tensors do not fit; the first, `{name}`, is {saved} "
            f"in the state and {mine} in the model; load it into a model of the configuration, features and tasks "
            "it was saved from"
        )


def copy_tensors(mine: Mapping[str, Tensor | TensorPieces], given: Mapping[str, TensorSource]) -> None:
    """Copy `given` into `mine`, name by name; of pieces only their windows are read. Raises ModelError, before anything
    is written, if they do not match."""
    check_fit({name: tensor.shape for name, tensor in mine.items()}, given)
    for name, source in given.items():
        for start, window in windows_of(mine[name]):
            fill_window(window, source, start)
