"""Settings of a kind of table: what `embeddings.<table>` holds in the settings of a teacher or a student."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from exfm.embeddings.composed import Composed
from exfm.embeddings.table import Table
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
