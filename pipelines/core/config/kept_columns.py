"""Columns added while a stream ran (`rows.undeclared: keep`), recorded in its run directory.

They are in the lake, and not in the config. A model reads one once the config declares it, under the type that the lake
has it in.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import StreamingError
from streaming.schema import Column
from streaming.store.files import read_json, write_json


def with_kept_columns(config: Config, run_dir: RunDir) -> Config:
    """`config` with the columns that the run has recorded so far. Raises StreamingError where their record is
    damaged."""
    columns = _kept(run_dir)
    return config.model_copy(update={"rows": config.rows.with_columns(columns)}) if columns else config


def keep_columns(run_dir: RunDir, columns: Iterable[Column]) -> None:
    """Record additional columns. Once this returns they are the run's, whatever is killed."""
    earlier = _kept(run_dir)
    names = {column.name for column in earlier}
    every = [*earlier, *(column for column in columns if column.name not in names)]
    write_json(run_dir.kept_columns, [{"name": column.name, "type": column.type} for column in every])


def _kept(run_dir: RunDir) -> list[Column]:
    stored = read_json(run_dir.kept_columns) or []
    try:
        return [Column(nullable=True, **each) for each in stored]
    except (TypeError, ValidationError) as error:
        raise StreamingError(
            f"{run_dir.kept_columns} is damaged ({str(error).splitlines()[0]}); put it back from a copy: it lists the "
            'columns that the lake has and the config does not, as [{"name": …, "type": …}, …]'
        ) from error
