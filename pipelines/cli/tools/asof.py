"""As-of features for the rows that a run's lake has already (`exfm lake asof`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.kept_columns import with_kept_columns
from pipelines.core.config.text import problems, read_yaml
from pipelines.core.config.topics import Frozen
from pipelines.core.run_dir.paths import RunDir
from pipelines.report.screens.progress import rows_bar
from streaming.errors import BadInput
from streaming.lake.asof import write_asof
from streaming.lake.asof_table import AsOfRange
from streaming.lake.reader import LakeReader
from streaming.schema import AsOf, AsOfFeature


class _Features(Frozen):
    asof: tuple[AsOfFeature, ...] = Field(min_length=1)


class _File(Frozen):
    """A part of a config: `features.asof`, and the section `asof`."""

    features: _Features
    asof: dict[str, Any] = Field(default={})


def asof_of_file(path: Path) -> AsOf:
    """As-of features as a config has them, `features.asof` and `asof`, or their list alone. Raises BadInput.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "asof.yaml"
    >>> _ = path.write_text("[{name: user_rate, by: user_id, rate: ctr}]")
    >>> asof_of_file(path).features[0].by
    ('user_id',)
    """
    wanted = "it holds as-of features as `features.asof` of a config: [{name: user_rate, by: user_id, rate: ctr}]"
    try:
        value = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--features {path} cannot be read: {error.strerror}; {wanted}") from None
    except ValueError as error:
        raise BadInput(f"--features {path} is not YAML: {error}; {wanted}") from None
    if not isinstance(value, list | dict):
        raise BadInput(f"--features {path} is neither a list nor a mapping; {wanted}")
    root: type[_File | AsOf] = _File
    try:
        file = _File.model_validate({"features": {"asof": value}} if isinstance(value, list) else value)
        root = AsOf
        return AsOf.model_validate(file.asof | {"features": file.features.asof})
    except ValidationError as error:
        raise BadInput(f"--features {path}: {wanted}\n" + "\n".join(problems(error, root))) from None


def compute_asof(root: Path, features: Path) -> AsOfRange:
    """Write the table of as-of features beside the lake of the run in `root`; safe while the run is live.

    Raises BadInput where the features or the run are not fit for it, StreamingError where another one does the same.
    """
    run_dir = RunDir(root)
    config, asof = config_of(run_dir), asof_of_file(features)
    lake = LakeReader(run_dir.lake, with_kept_columns(config, run_dir).rows)
    with rows_bar("as-of features", lake.rows) as advance:
        return write_asof(lake, asof, advance)
