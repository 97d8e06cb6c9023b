"""A row per id."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from exfm.embeddings.kinds.settings import MOST, EmbeddingSettings, Tabled
from exfm.embeddings.table import Table
from exfm.errors import ConfigError


class FullTable(EmbeddingSettings):
    """A row per id: nothing is shared, and nothing is saved."""

    kind: Literal["full"] = Field(default="full", description="A row per id.")

    grows: ClassVar[bool] = True

    def table(self, feature: Tabled, width: int) -> Table:
        if feature.rows > MOST:
            raise ConfigError(
                f"feature `{feature.name}` has {feature.rows:,} ids, and its table a row for each; give it fewer "
                f"`rows`, or another kind: embeddings.{feature.name}.kind=hash, qr or managed"
            )
        return Table.of(feature, width)

    def linear_rows(self, feature: Tabled) -> int:
        return feature.rows
