"""Settings of a kind of table: what `embeddings.<table>` holds in the settings of a teacher or a student."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from exfm.embeddings.composed import Composed
from exfm.embeddings.table import Table
from exfm.errors import ConfigError
from exfm.features.sparse import SequenceFeature, SparseFeature

Tabled = SparseFeature | SequenceFeature

MOST = 2**36
"""Rows of a plain table at most: of four columns, a terabyte."""


class EmbeddingSettings(BaseModel, ABC):
    """Settings of a kind of table. Its ids are those of its feature: in [0, the feature's `rows`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(description="The kind of table, by name or as `package.module:Class`.")

    grows: ClassVar[bool] = False
    """Whether an id finds its row again where its feature has more ids."""
    learns: ClassVar[bool] = False
    """Whether ids come and go while a model learns."""

    @abstractmethod
    def table(self, feature: Tabled, width: int) -> Table | Composed:
        """The table of a feature whose keys are `width` wide. Raises ConfigError where there can be none."""

    @abstractmethod
    def linear_rows(self, feature: Tabled) -> int:
        """Rows that the feature has in a linear part, which its ids are taken modulo."""

    def host(self) -> str | None:
        """The table whose rows this one shares; None: it has its own."""
        return None

    def tables(self, members: Sequence[SharingTable]) -> list[Composed]:
        """Tables that share rows: that of these settings, and those that name it. Raises ConfigError where there can be
        none."""
        sharing = next(of for of in members if of.settings.host() is not None)
        raise ConfigError(
            f"embeddings.{sharing.feature.name} shares rows of `{sharing.settings.host()}`, whose table of kind "
            f"`{self.kind}` shares none; name one of kind fiited that shares no other's itself"
        )


class SharingTable(NamedTuple):
    """One of several tables that share rows."""

    feature: Tabled
    width: int
    settings: EmbeddingSettings
