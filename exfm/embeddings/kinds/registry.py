"""Kinds of tables by name, and the tables of a model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, SerializeAsAny, WithJsonSchema

from exfm.embeddings.composed import Composed, plain
from exfm.embeddings.kinds.fiited import Fiited
from exfm.embeddings.kinds.full import FullTable
from exfm.embeddings.kinds.hashed import Hashed, HashedTable
from exfm.embeddings.kinds.managed import Managed
from exfm.embeddings.kinds.mixed import Mixed
from exfm.embeddings.kinds.qr import QR
from exfm.embeddings.kinds.settings import MOST, EmbeddingSettings, SharingTable, Tabled
from exfm.embeddings.table import Table, keys_of
from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

KINDS: dict[str, type[EmbeddingSettings]] = {
    "full": FullTable,
    "hash": Hashed,
    "qr": QR,
    "mixed": Mixed,
    "fiited": Fiited,
    "managed": Managed,
}
"""Settings of every kind, by its name."""


def settings_of(data: Any) -> EmbeddingSettings:
    """Parse the settings of a table: those of its `kind`, which is a name or `package.module:Class`.

    >>> settings_of({"kind": "hash", "rows": 10})
    Hashed(kind='hash', rows=10)
    """
    if isinstance(data, EmbeddingSettings):
        return data
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError(f"a table's settings name its `kind`: {', '.join(KINDS)}")
    kind = _settings_class(data["kind"])
    for name in data:
        if name not in kind.model_fields:
            known = ", ".join(field for field in kind.model_fields if field != "kind") or "none"
            raise ConfigError(f"`{name}` is no setting of a table of kind `{data['kind']}`; its settings: {known}")
    return kind.model_validate(data)


_OWN_CLASS = {"type": "object", "properties": {"kind": {"type": "string", "pattern": ":"}}, "required": ["kind"]}
_SCHEMA = {"anyOf": [*(kind.model_json_schema() for kind in KINDS.values()), _OWN_CLASS]}
Embedding = Annotated[
    SerializeAsAny[EmbeddingSettings], BeforeValidator(settings_of), WithJsonSchema(_SCHEMA, mode="validation")
]
"""Settings of a table, of any kind."""

Embeddings = Mapping[str, EmbeddingSettings]


def tables_of(features: FeatureSet, width: int, embeddings: Embeddings) -> list[Table | Composed]:
    """One table per sparse feature and sequence, named after it; full, unless `embeddings` says another kind. Without a
    width of its own it gets `width`.

    Raises ConfigError for the name of a table that there is not, and where a kind cannot be had.
    """
    if unknown := [name for name in embeddings if name not in features.table_names]:
        raise ConfigError(
            f"embeddings.{unknown[0]} is no table of this model; its tables are {', '.join(features.table_names)}"
        )
    found: dict[str, Table | Composed] = {}
    members = {
        feature.name: SharingTable(feature, getattr(feature, "width", None) or width, _settings(feature, embeddings))
        for feature in features.tabled
    }
    for feature, own, settings in members.values():
        host, sharing = settings.host() or feature.name, sharing_rows(feature.name, embeddings)
        if host not in members:
            raise ConfigError(
                f"embeddings.{feature.name} shares rows of `{host}`, which is no table of this model; its tables are "
                f"{', '.join(members)}"
            )
        if len(sharing) > 1 and feature.name not in found:
            of_host = members[host].settings
            found |= {of.name: of for of in of_host.tables([of for name, of in members.items() if name in sharing])}
        table = found[feature.name] if len(sharing) > 1 else settings.table(feature, own)
        if (most := max(of.rows for of in plain(table))) > MOST:
            raise ConfigError(
                f"embeddings.{feature.name} has a table of {most:,} rows, of at most {MOST:,}; make it smaller: fewer "
                f"`rows` of the feature, more partitions of `qr`, or another kind"
            )
        found[feature.name] = table
    return [found[name] for name in members]


def sharing_rows(name: str, embeddings: Embeddings) -> set[str]:
    """Tables that share rows with one, itself among them."""
    host = embeddings.get(name, FULL).host() or name
    return {host, *(of for of, settings in embeddings.items() if settings.host() == host)}


def check_tables(features: FeatureSet, width: int, embeddings: Embeddings) -> None:
    """Raise ConfigError as `tables_of` does. No memory is taken."""
    with torch.device("meta"):
        tables_of(features, width, embeddings)


def linear_tables(features: FeatureSet, width: int, embeddings: Embeddings) -> list[Table | Composed]:
    """Tables of a linear part: of every feature as many rows as its kind of table would have."""
    found: list[Table | Composed] = []
    for feature in features.tabled:
        rows = min(feature.rows, _settings(feature, embeddings).linear_rows(feature))
        whole = rows == feature.rows
        own = Table.of(feature, width) if whole else HashedTable(feature.name, keys_of(feature), width, rows)
        found.append(own)
    return found


def event_tables(features: FeatureSet, width: int) -> list[Table]:
    """A table for each item of events, named after its list; the row's own id is looked up there too."""
    return [Table(name, item.rows, width, (name,), item.transform == "hash") for name, item in _lists(features)]


def lists_of(features: FeatureSet, table: str) -> list[str]:
    """Lists of events whose ids are those of a table."""
    return [name for name, item in _lists(features) if item.name == table]


def _lists(features: FeatureSet) -> list[tuple[str, SparseFeature]]:
    return [pair for events in features.events for pair in zip(events.lists, events.items, strict=False)]


def _settings(feature: Tabled, embeddings: Embeddings) -> EmbeddingSettings:
    return embeddings.get(feature.name, FULL)


FULL = FullTable()
"""What a table is that is not named."""


def _settings_class(name: str) -> type[EmbeddingSettings]:
    if name in KINDS:
        return KINDS[name]
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"unknown kind of table `{name}` ({error}); choose from {', '.join(KINDS)}, or name a class of settings as "
            "`package.module:Class`"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, EmbeddingSettings)):
        raise ConfigError(f"kind `{name}` must be a subclass of exfm.embeddings.kinds.settings.EmbeddingSettings")
    return kind
