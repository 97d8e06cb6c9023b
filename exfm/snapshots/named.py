"""A state as tensors by name, and its fit to a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.snapshots.windows import TensorSource, fill_window


def check_fit(model: Mapping[str, torch.Size], state: Mapping[str, TensorSource]) -> None:
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


def copy_tensors(mine: Mapping[str, Tensor], given: Mapping[str, TensorSource]) -> None:
    """Copy `given` into `mine`, name by name. Raises ModelError, before anything is written, if they do not match."""
    check_fit({name: tensor.shape for name, tensor in mine.items()}, given)
    for name, tensor in given.items():
        fill_window(mine[name], tensor)
