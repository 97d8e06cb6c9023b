"""One stream that many models learn from: settled rows in a file, made once and mapped by whoever reads them.

Rows are those that the pipeline's lake would hold, in its order: of the config's source, settled here, or of a run's
lake. With features and labels comes the logit of the truth where it is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipelines.config import Config, Generated, Recorded
from pipelines.run_dir import RunDir
from pipelines.workers import stream_name
from streaming.disk import replacing
from streaming.errors import BadInput
from streaming.lake import LakeReader
from streaming.schema import SAMPLE_WEIGHT
from streaming.settlement import Verticals
from streaming.sources import Chunk, RecordedStream, settled_rows
from streaming.sources.synthetic import Truth, generated_stream, load_truth

Advance = Callable[[int], None]
OPTIMUM = "optimum_"


class Rows(NamedTuple):
    """`name` says which rows these are: the same for the same, whatever file they came from."""

    table: pa.Table
    name: str


def rows_of(
    config: Config,
    folder: Path,
    *,
    limit: int | None,
    run_dir: RunDir | None,
    advance: Advance,
    columns: Sequence[str] | None = None,
) -> Rows:
    """The first `limit` settled rows of the config's source, or of the lake in `run_dir`; from `folder` where they lie.

    `columns` of the settled row, or of the lake's; default: features and labels. Raises BadInput where the config has
    no source, or there is no lake.
    """
    wanted = list(_columns(config) if columns is None else columns)
    stream, batches = _source(config, wanted) if run_dir is None else _lake(config, run_dir, wanted)
    partitions = 1 if run_dir is not None else config.kafka.impressions.partitions
    digest = hashlib.blake2b(digest_size=6)
    digest.update(f"{stream} {limit} {partitions} {config.settlement.model_dump_json()} {wanted}".encode())
    path = folder / f"rows-{digest.hexdigest()}.arrow"
    if not path.exists():
        _write(path, batches, limit, advance)
    with pa.memory_map(str(path)) as file:
        return Rows(pa.ipc.open_file(file).read_all(), digest.hexdigest())


def _columns(config: Config) -> list[str]:
    weight = [SAMPLE_WEIGHT] if config.rows.weighted else []
    return list(dict.fromkeys([*config.read_columns, *(f"label_{task}" for task in config.tasks), *weight]))


def _lake(config: Config, run_dir: RunDir, columns: list[str]) -> tuple[str, Iterator[pa.Table]]:
    lake = LakeReader(run_dir.lake, config.rows)
    truth = load_truth(run_dir.truth, config.tasks)

    def batches() -> Iterator[pa.Table]:
        after = None
        while after is None or after < lake.last_lake_seq:
            asked = list(dict.fromkeys(["impression_id", *columns]))
            read = lake.read(after, limit_rows=16_384, columns=asked)
            after = read.complete_upto
            yield _with_truth(read.table, truth, config, columns)

    return f"lake {lake.id}", batches()


def _source(config: Config, columns: list[str]) -> tuple[str, Iterator[pa.Table]]:
    source = config.source
    if source is None:
        raise BadInput("this config has no source to train on; give `--from RUN_DIR`, a run whose lake has rows")

    def batches() -> Iterator[pa.Table]:
        played: Iterable[Chunk]
        if isinstance(source, Generated):
            encoding = config.kafka.impressions.codec
            played = generated_stream(source, config.rows, encoding=encoding).chunks(source.chunk_rows)
        else:
            assert isinstance(source, Recorded)
            played = RecordedStream(source.path, source, config.rows).chunks(source.chunk_rows)
        truths: list[pa.RecordBatch] = []
        partitions = config.kafka.impressions.partitions
        settled = settled_rows(
            _told(played, truths),
            config.rows,
            config.settlement,
            partitions=partitions,
            limits=config.limits,
            verticals=Verticals(config.declared_verticals, config.lake.max_verticals),
        )
        for batch in settled:
            # Truth comes with the impression, the rows much later; what has settled is not asked for again.
            truth = Truth(pa.Table.from_batches(truths)) if truths else None
            yield _with_truth(pa.Table.from_batches([batch]), truth, config, columns)

    return stream_name(config, source), batches()


def _told(chunks: Iterable[Chunk], truths: list[pa.RecordBatch]) -> Iterator[Chunk]:
    for chunk in chunks:
        if chunk.truth is not None:
            truths.append(chunk.truth)
        yield chunk


def _with_truth(rows: pa.Table, truth: Truth | None, config: Config, columns: list[str]) -> pa.Table:
    kept = rows.select(columns)
    if truth is None or not rows.num_rows:
        return kept
    ids = rows["impression_id"].combine_chunks()
    for task in config.tasks:
        kept = kept.append_column(OPTIMUM + task, pa.array(truth.logits(ids, task)))
    return kept


def _write(path: Path, batches: Iterator[pa.Table], limit: int | None, advance: Advance) -> None:
    """Complete under its name, or not there."""
    written, writer = 0, None
    with replacing(path) as file:
        for table in batches:
            table = table if limit is None else table.slice(0, limit - written)
            if not table.num_rows:
                continue
            if writer is None:
                writer = pa.ipc.new_file(file, table.schema)
            writer.write_table(table)
            written += table.num_rows
            advance(written)
            if written == limit:
                break
        if writer is None:
            raise BadInput("the stream has no settled row; a longer one, or a shorter window, would")
        writer.close()
