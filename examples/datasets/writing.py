"""The rows of a data set as a Parquet file in order of event time, in constant memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from examples.datasets.display_ads import AVAZU, CRITEO, CRITEO_TERABYTE, KDD12
from examples.datasets.media import MOVIELENS, YAMBDA
from examples.datasets.published import PLACE, Dataset
from examples.datasets.shops import TALKINGDATA, TAOBAO
from streaming.errors import BadInput
from streaming.sources.tables.engine import TableEngine, in_words, parquet, quoted
from streaming.sources.tables.in_order import MADE, ROW, rows_behind, write_in_order
from streaming.store.files import move

DATASETS: dict[str, Dataset] = {
    "criteo": CRITEO,
    "criteo-terabyte": CRITEO_TERABYTE,
    "avazu": AVAZU,
    "kdd12": KDD12,
    "talkingdata": TALKINGDATA,
    "taobao": TAOBAO,
    "movielens": MOVIELENS,
    "yambda": YAMBDA,
}
"""By the name under which the command takes them."""


def dataset(name: str) -> Dataset:
    """Find a data set; raises BadInput for an unknown name."""
    if name not in DATASETS:
        raise BadInput(f"`{name}` is no data set that is known; there are {', '.join(DATASETS)}")
    return DATASETS[name]


def init_arguments(name: str, rows: Path) -> list[str]:
    """The arguments of `exfm init` for the Parquet file of a data set: the recipe knows what its columns are.

    >>> init_arguments("avazu", Path("avazu.parquet"))[:6]
    ['init', 'avazu.parquet', '-o', 'avazu.yaml', '--time', 'event_time_ms']
    """
    chosen = dataset(name)
    arguments = ["init", str(rows), "-o", str(rows.with_suffix(".yaml")), "--time", MADE]
    for label in chosen.labels:
        arguments += ["--label", label]
    for option, column in (("--id", chosen.id), ("--vertical", chosen.vertical), ("--user", chosen.user)):
        if column is not None:
            arguments += [option, column]
    return arguments


def write_dataset(name: str, path: Path, to: Path, *, force: bool = False) -> int:
    """Write the rows of data set `name`, whose published files lie at `path`, to the Parquet file `to`, in order of
    `event_time_ms`; returns their number. The file is complete, or absent.

    Raises BadInput where files are missing or not in that format, and where `to` is there already, unless `force`.
    """
    chosen = dataset(name)
    files = chosen.found(path)
    if to.exists() and not force:
        raise BadInput(f"{to} is there already; name another with -o, or overwrite it with --force")
    to.parent.mkdir(parents=True, exist_ok=True)
    begun = to.with_name(f".{to.name}.begun")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir()
    try:
        at = _rows(chosen, files, begun)
        rows = pq.read_metadata(at).num_rows
        if not rows:
            raise BadInput(f"{path} has no rows; give a file that has some")
        names = pq.read_schema(at).names
        if PLACE in names:
            at = _in_order(at, f"{MADE}, {PLACE}" if MADE in names else PLACE, begun)
        if chosen.time is not None:
            at = _with_times(chosen, at, rows, begun)
        if rows_behind(at, MADE, "ms", 0):
            at = _in_order(at, MADE, begun)
        move(at, to)
    except duckdb.Error as error:
        raise in_words(error, path) from None
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return rows


def _rows(chosen: Dataset, files: dict[str, list[Path]], begun: Path) -> Path:
    with TableEngine(begun) as engine:
        engine.write(chosen.rows(chosen.read(files)), begun / "rows.parquet")
    return begun / "rows.parquet"


def _with_times(chosen: Dataset, at: Path, rows: int, begun: Path) -> Path:
    assert chosen.time is not None
    with TableEngine(begun) as engine:
        group = chosen.group
        kept = ", ".join(quoted(name) for name in engine.types(parquet(at)) if name not in (ROW, group))
        source = f"FROM {parquet(at)}"
        order = "" if group is None else f" ORDER BY {ROW}"
        if group is not None:
            groups = (
                f"SELECT {group}, min({ROW}) AS first_of_group, count(*) AS rows_of_group {source} GROUP BY {group}"
            )
            source += f" JOIN ({groups}) USING ({group})"
        time = f"({chosen.time(rows)})::BIGINT AS {MADE}"
        engine.write(f"SELECT {kept}, {time} {source}{order}", begun / "timed.parquet")
    at.unlink()
    return begun / "timed.parquet"


def _in_order(at: Path, order: str, begun: Path) -> Path:
    with TableEngine(begun) as engine:
        sorted_ = begun / f"sorted-{at.name}"
        columns = [quoted(name) for name in engine.types(parquet(at)) if name not in (ROW, PLACE)]
        write_in_order(engine, at, sorted_, columns, order)
    at.unlink()
    return sorted_
