"""The interactions by name, for teachers (`interaction`) and students (`trunk`).

To add one, write its module (exfm/interactions/interaction.py says what it defines) and add a line to `INTERACTIONS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.interactions.dcn import CrossConfig, DCNOptions
from exfm.interactions.dlrm import DLRMOptions
from exfm.interactions.interaction import InteractionOptions
from exfm.interactions.mlp import MLPOptions
from exfm.interactions.wukong import WukongOptions
from exfm.randomness import named_generator

INTERACTIONS: dict[str, type[InteractionOptions]] = {
    "wukong": WukongOptions,
    "dlrm": DLRMOptions,
    "dcn": DCNOptions,
    "mlp": MLPOptions,
}


def interaction_options(name: str, options: Mapping[str, Any]) -> InteractionOptions:
    """The settings of the interaction `name`. Raises ConfigError for a name or a setting that does not exist.

    >>> interaction_options("mlp", {"sizes": [8]})
    MLPOptions(sizes=(8,))
    """
    if name not in INTERACTIONS:
        raise ConfigError(f"unknown interaction `{name}`; choose from {', '.join(INTERACTIONS)}")
    return INTERACTIONS[name].model_validate(options)


class TrunkConfig(BaseModel):
    """A student's trunk: an interaction by name, or a class of your own as `package.module:Class`.

    Such a class is an `nn.Module` that is made by `Class(num_sparse, width, num_dense, generator=…, **options)`, maps
    embeddings (B, F, D) and dense features (B, N) to (B, H), and has H as `out_width`.

    `dlrm`, `dcn` and `mlp` take `mlp`, `bottom` and `cross`; all others take their settings as `options`.

    >>> TrunkConfig(name="wide")
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for TrunkConfig
      Value error, unknown trunk `wide`; choose from wukong, dlrm, dcn, mlp, or `package.module:Class` ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="dlrm", description="An interaction's name, or `package.module:Class`.")
    mlp: tuple[int, ...] = Field(
        default=(64, 32), description="Sizes of the MLP: the top one of `dlrm`, the deep one of `dcn`, all of `mlp`."
    )
    bottom: tuple[int, ...] = Field(
        default=(32,),
        description="Of `dlrm`: hidden sizes of the MLP over dense features, which ends in the embedding width.",
    )
    cross: CrossConfig = Field(default=CrossConfig(), description="Of `dcn`: the explicit crosses.")
    options: dict[str, Any] = Field(default={}, description="Settings of any other trunk.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        return with_complete_options(data, data.get("name"), flat=_FLAT) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _known(self) -> TrunkConfig:
        if self.name not in INTERACTIONS and ":" not in self.name:
            raise ConfigError(
                f"unknown trunk `{self.name}`; choose from {', '.join(INTERACTIONS)}, "
                "or `package.module:Class` for one of your own"
            )
        if self.options and self.name in _FLAT:
            raise ConfigError(
                f"trunk `{self.name}` takes `mlp`, `bottom` and `cross`, no options, and was given "
                f"{sorted(self.options)}"
            )
        if self.cross != CrossConfig() and self.name != "dcn":
            raise ConfigError(f"`cross` belongs to the trunk `dcn`, and this is `{self.name}`; leave it out")
        return self

    def interaction(self) -> InteractionOptions:
        """The settings of this trunk's interaction. Only for a trunk that is registered by name."""
        return interaction_options(self.name, self._flat_options() if self.name in _FLAT else self.options)

    def _flat_options(self) -> dict[str, Any]:
        if self.name == "dlrm":
            return {"bottom": self.bottom, "top": self.mlp}
        return {"cross": self.cross, "deep": self.mlp} if self.name == "dcn" else {"sizes": self.mlp}


_FLAT = ("dlrm", "dcn", "mlp")  # whose settings are fields of `TrunkConfig`, from before there were options


def with_complete_options(data: dict[str, Any], name: Any, flat: tuple[str, ...]) -> dict[str, Any]:
    """Settings with all defaults of `options`, those of the interaction `name`, written out."""
    if not isinstance(name, str) or name not in INTERACTIONS or name in flat:
        return data
    return {**data, "options": interaction_options(name, data.get("options", {})).model_dump(mode="json")}


def build_trunk(trunk: TrunkConfig, features: FeatureSet, width: int, seed: int) -> nn.Module:
    """The trunk over embeddings of `width`; a feature of width m·D counts as m of them.

    Its weights follow from the seed alone, also where a class of one's own draws them from torch's global generator,
    which is left as it was.

    Raises ConfigError for a feature whose width is not a multiple, or a class that cannot be found, made or used.
    """
    units = features.unit_count(width)
    generator = named_generator(seed, "trunk")
    if trunk.name in INTERACTIONS:
        return trunk.interaction().build(units, width, features.dense_inputs, generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        return _own(trunk, units, width, features.dense_inputs, generator)


def _own(trunk: TrunkConfig, units: int, width: int, num_dense: int, generator: torch.Generator) -> nn.Module:
    module, _, name = trunk.name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
        if not (
            isinstance(cls, type) and issubclass(cls, nn.Module)
        ):  # a stored model names it: nothing else is called
            raise TypeError("it is no class of torch.nn.Module")
        made = cls(units, width, num_dense, generator=generator, **trunk.options)
    except (ImportError, AttributeError, TypeError) as e:
        raise ConfigError(
            f"trunk `{trunk.name}` cannot be made: {e}; it must be importable as `package.module:Class` and take "
            f"(num_sparse, width, num_dense, *, generator) and the options {sorted(trunk.options)}"
        ) from e
    if not isinstance(getattr(made, "out_width", None), int):
        raise ConfigError(f"trunk `{trunk.name}` must say its output width as `out_width`")
    return made
