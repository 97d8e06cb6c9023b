"""What lies between a student's embeddings and its heads, by name.

A trunk is any nn.Module that is made by `Class(num_sparse, width, num_dense, generator=…, **options)`, maps embeddings
(B, F, D) and dense features (B, N) to (B, H), and says H as `out_width`.

B examples, F embeddings, D their width, N dense features, H width of the representation.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor, nn

from exfm.data import FeatureSet
from exfm.errors import ConfigError
from exfm.layers.dcn import DCN, CrossConfig
from exfm.layers.dense import seeded_mlp
from exfm.layers.dlrm import DLRM
from exfm.layers.units import unit_count
from exfm.randomness import named_generator

KNOWN = ("dlrm", "dcn", "mlp")


class TrunkConfig(BaseModel):
    """A trunk by name: `dlrm`, `dcn`, `mlp`, or a class of your own as `package.module:Class`, made with `options`.

    `mlp` are the sizes of the (top, deep) MLP. `bottom` are the hidden sizes of DLRM's MLP over dense features, which
    ends in the embedding width. `cross` is DCN's.

    >>> TrunkConfig(name="wide")
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for TrunkConfig
      Value error, there is no trunk `wide`; there are: dlrm, dcn, mlp, or `package.module:Class` ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "dlrm"
    mlp: tuple[int, ...] = (64, 32)
    bottom: tuple[int, ...] = (32,)
    cross: CrossConfig = CrossConfig()
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _known(self) -> TrunkConfig:
        if self.name not in KNOWN and ":" not in self.name:
            raise ConfigError(
                f"there is no trunk `{self.name}`; there are: {', '.join(KNOWN)}, "
                "or `package.module:Class` for one of your own"
            )
        if self.options and self.name in KNOWN:
            raise ConfigError(
                f"trunk `{self.name}` takes `mlp`, `bottom` and `cross`, no options, and was given "
                f"{sorted(self.options)}"
            )
        if self.cross != CrossConfig() and self.name != "dcn":
            raise ConfigError(f"`cross` belongs to the trunk `dcn`, and this is `{self.name}`; leave it out")
        return self


class ConcatMLP(nn.Module):
    """h = MLP([e_1; …; e_F; dense]). Shapes: (B, F, D), (B, N) -> (B, H)."""

    def __init__(
        self, num_sparse: int, width: int, num_dense: int, *, sizes: Sequence[int], generator: torch.Generator
    ):
        super().__init__()
        if not sizes:
            raise ConfigError("the trunk `mlp` has 0 layers; give `mlp` at least one size")
        self.layers = seeded_mlp(num_sparse * width + num_dense, sizes, generator)
        self.out_width = sizes[-1]

    def forward(self, e_BFD: Tensor, dense_BN: Tensor) -> Tensor:
        return self.layers(torch.cat([e_BFD.flatten(1), dense_BN], dim=1))


def build_trunk(trunk: TrunkConfig, features: FeatureSet, width: int, seed: int) -> nn.Module:
    """The trunk over embeddings of `width`; a feature of width m·D counts as m of them.

    Its weights follow from the seed alone, also where a class of one's own draws them from torch's global generator,
    which is left as it was.

    Raises ConfigError for a feature whose width is not a multiple, or a class that cannot be found, made or used.
    """
    units = unit_count(features, width)
    generator = named_generator(seed, "trunk")
    if trunk.name == "dlrm":
        bottom = (*trunk.bottom, width) if features.dense_inputs else ()
        return DLRM(units, width, features.dense_inputs, bottom=bottom, top=trunk.mlp, generator=generator)
    if trunk.name == "dcn":
        return DCN(units, width, features.dense_inputs, cross=trunk.cross, deep=trunk.mlp, generator=generator)
    if trunk.name == "mlp":
        return ConcatMLP(units, width, features.dense_inputs, sizes=trunk.mlp, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        return _own(trunk, units, width, features.dense_inputs, generator)


def _own(trunk: TrunkConfig, units: int, width: int, num_dense: int, generator: torch.Generator) -> nn.Module:
    module, _, name = trunk.name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
        made = cls(units, width, num_dense, generator=generator, **trunk.options)
    except (ImportError, AttributeError, TypeError) as e:
        raise ConfigError(
            f"trunk `{trunk.name}` cannot be made: {e}; it must be importable as `package.module:Class` and take "
            f"(num_sparse, width, num_dense, *, generator) and the options {sorted(trunk.options)}"
        ) from e
    if not isinstance(made, nn.Module) or not isinstance(getattr(made, "out_width", None), int):
        raise ConfigError(f"trunk `{trunk.name}` must be an nn.Module that says its output width as `out_width`")
    return made
