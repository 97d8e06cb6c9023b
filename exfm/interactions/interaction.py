"""Interface of the interactions. An interaction lies between a model's embeddings and its heads.

An interaction is one module of this folder and one line in exfm/interactions/registry.py. The module defines two
classes:

    options      the settings, an `InteractionOptions`; `build` makes the network
    network      an `Interaction`: (B, N, D), (B, C) -> (B, H), with H as `out_width`

Teachers and students then take it by name, with its settings as `options`. Its parameters and FLOPs are counted from
what `build` makes (exfm/parallel/planning/cost.py). Two more methods are optional: `feature_axes` lets a trained model
gain and lose features, `widened` lets `exfm scale` compare it at equal FLOPs.

B examples, N embeddings of width D, C dense features, H width of the representation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from exfm.errors import ConfigError, ModelError

Labels = tuple[Hashable, ...]

Axes = tuple[Labels | None, ...]
"""Per dimension of a parameter: a label for each place along it, or None where it does not depend on the features."""


class InputLabels(NamedTuple):
    """Names for the inputs of an interaction, one per embedding and one per dense feature, in order.

    Two models with different features share what has the same label.
    """

    embeddings: Labels
    dense: Labels


class Interaction(nn.Module):
    """Embeddings and dense features to a representation. Shapes: (B, N, D), (B, C) -> (B, H)."""

    out_width: int

    def exportable(self, e_BND: Tensor, dense_BC: Tensor) -> Tensor:
        """Exportable form of `forward` for a compiler (exfm/kernels/machine_code.py), equal up to rounding."""
        return self(e_BND, dense_BC)

    def feature_axes(self, inputs: InputLabels) -> dict[str, Axes]:
        """The axes of those parameters whose size depends on the features, by parameter name.

        Parameters that this instance lacks, but would have with `inputs`, may be among them.

        Raises ModelError for an interaction that does not declare them: its features cannot change.
        """
        raise ModelError(
            f"{type(self).__name__} declares no feature_axes(), so the features of a trained model cannot change; "
            "train a new model"
        )

    def output_labels(self, inputs: InputLabels) -> Labels | None:
        """A label for each value of the representation; None where it does not depend on the features."""
        return None

    def grown_parameters(self, was: InputLabels, now: InputLabels) -> dict[str, Tensor]:
        """Parameters that exist with the inputs `now` but not with the inputs `was`, with their initial values.

        Only those that have to start from a certain value, so that the representation stays what it was.

        Raises ModelError where no value does that.
        """
        return {}


class InteractionOptions(BaseModel):
    """The settings of one interaction. A subclass adds fields and `build`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def build(self, embeddings: int, width: int, dense: int, generator: torch.Generator) -> Interaction:
        """Build the network over `embeddings` of `width` and `dense` floats; initial weights come from `generator`
        only."""
        raise NotImplementedError

    def widened(self, times: float, inputs: int) -> Self:
        """The usual shape of this interaction over `inputs` values, `times` as wide.

        Raises ConfigError where an interaction has no such shape.
        """
        raise ConfigError(
            f"{type(self).__name__} declares no widened(), so it cannot be compared at equal FLOPs; leave it out"
        )


def widen(sizes: tuple[int, ...], times: float) -> tuple[int, ...]:
    """Layer sizes, `times` as wide, each at least 1.

    >>> widen((64, 1), 0.25)
    (16, 1)
    """
    return tuple(max(1, round(size * times)) for size in sizes)
