"""Settled rows of one stream in a file, made once and mapped by every process that reads them.

Rows are those that the pipeline's lake would hold, in its order: of the config's source, settled here, or of a run's
lake. With features and labels comes the logit of the truth where it is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.core.config.sections import FollowedLake, Generated, Recorded
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ingest import stream_name
from streaming.errors import BadInput
from streaming.lake.erasure.holes import Holes
from streaming.lake.reader import LakeReader
from streaming.lake.withdrawn import Withdrawn
from streaming.schema import SAMPLE_WEIGHT
from streaming.settlement.admission import Verticals
from streaming.sources.chunk import Chunk
from streaming.sources.settled import settled_rows
from streaming.sources.synthetic.stream import generated_stream
from streaming.sources.synthetic.truth import Truth, load_truth
from streaming.store.files import replacing

Advance = Callable[[int], None]
OPTIMUM = "optimum_"
COPIES = "source"


@dataclass(frozen=True)
class Rows:
    """Rows in the file `path`. `name` says which rows these are: the same for the same, whatever file they came from.

    `table` has all of them, for readers of whole columns: what is read stays mapped. `slice` gives some of them, whose
    memory goes with them.
    """

    path: Path
    name: str

    @cached_property
    def table(self) -> pa.Table:
        return self._mapped().read_all()

    @property
    def num_rows(self) -> int:
        return int(self._ends[-1])

    def slice(self, offset: int = 0, length: int | None = None) -> pa.Table:
        """Slice like a table."""
        reader = self._mapped()
        end = self.num_rows if length is None else min(self.num_rows, offset + length)
        first, last = np.searchsorted(self._ends, [offset, max(offset, end - 1)], side="right").tolist()
        batches = [reader.get_batch(number) for number in range(first, min(last, len(self._ends) - 1) + 1)]
        before = int(self._ends[first - 1]) if first else 0
        return pa.Table.from_batches(batches, reader.schema).slice(offset - before, max(0, end - offset))

    def _mapped(self) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self.path)))  # closed when nothing of it is left

    @cached_property
    def _ends(self) -> np.ndarray:
        """Ends of the pieces of the file."""
        reader = self._mapped()
        return np.cumsum([reader.get_batch(number).num_rows for number in range(reader.num_record_batches)])


def rows_of(
    config: Config,
    folder: Path,
    *,
    limit: int | None,
    run_dir: RunDir | None,
    advance: Advance,
    columns: Sequence[str] | None = None,
    span: tuple[int, int] | None = None,
) -> Rows:
    """The first `limit` settled rows of the config's source, or of the lake in `run_dir`; cached in `folder`. `span`:
    first and last `lake_seq` that are taken of a lake; None: all.

    `columns` of the settled row, or of the lake's; default: features and labels. Raises BadInput where the config has
    no source, or there is no lake.
    """
    wanted = list(_columns(config) if columns is None else columns)
    stream, batches = _source(config, wanted, folder) if run_dir is None else _lake(config, run_dir, wanted, span)
    rows = _named(config, folder, stream, limit, wanted, span, of_a_lake=run_dir is not None)
    if not rows.path.exists():
        _write(rows.path, batches, limit, advance)
    return rows


def are_copied(
    config: Config, folder: Path, lake: LakeReader, *, limit: int | None, columns: Sequence[str], span: tuple[int, int]
) -> bool:
    """True if `folder` holds a copy of these rows, so that the lake may delete them."""
    return _named(config, folder, _stream_of(lake), limit, list(columns), span, of_a_lake=True).path.exists()


def _stream_of(lake: LakeReader) -> str:
    erased = Holes.of(lake.path.parent).rows
    return lake.content_id + Withdrawn(lake.path.parent).id + (f" without {erased} erased rows" if erased else "")


def _named(
    config: Config,
    folder: Path,
    stream: str,
    limit: int | None,
    columns: list[str],
    span: tuple[int, int] | None,
    *,
    of_a_lake: bool,
) -> Rows:
    partitions = 1 if of_a_lake else config.kafka.impressions.partitions
    digest = hashlib.blake2b(digest_size=6)
    stream = stream if span is None else f"{stream} {span[0]} to {span[1]}"
    digest.update(f"{stream} {limit} {partitions} {config.settlement.model_dump_json()} {columns}".encode())
    return Rows(folder / f"rows-{digest.hexdigest()}.arrow", digest.hexdigest())


def _columns(config: Config) -> list[str]:
    weight = [SAMPLE_WEIGHT] if config.rows.weighted else []
    return list(dict.fromkeys([*config.read_columns, *(f"label_{task}" for task in config.tasks), *weight]))


def _lake(
    config: Config, run_dir: RunDir, columns: list[str], span: tuple[int, int] | None
) -> tuple[str, Iterator[pa.Table]]:
    lake = LakeReader(run_dir.lake, config.rows)
    truth = load_truth(run_dir.truth, config.tasks)
    withdrawn = Withdrawn(run_dir.side_tables)
    kept = withdrawn.kept(config.rows)

    def batches() -> Iterator[pa.Table]:
        after, upto = (None, lake.last_lake_seq) if span is None else (span[0] - 1, span[1])
        asked = list(dict.fromkeys(["impression_id", "lake_seq", "teacher_version", *columns]))
        while after is None or after < upto:
            read = lake.read(after, upto=upto, limit_rows=16_384, columns=asked, filter=kept)
            after = read.complete_upto
            yield _with_truth(withdrawn.applied(read.table), truth, config, columns)

    return _stream_of(lake), batches()


def _source(config: Config, columns: list[str], folder: Path) -> tuple[str, Iterator[pa.Table]]:
    source = config.source
    if source is None or isinstance(source, FollowedLake):
        raise BadInput("this config has no source to train on; give `--from RUN_DIR`, a run whose lake has rows")

    def batches() -> Iterator[pa.Table]:
        truth = Truth()
        partitions = config.kafka.impressions.partitions
        settled = settled_rows(
            _collecting_truth(played(config, folder), truth),
            config.rows,
            config.settlement,
            partitions=partitions,
            limits=config.limits,
            verticals=Verticals(config.declared_verticals, config.lake.max_verticals),
        )
        for batch in settled:
            # Truth comes with the impression, its rows much later, one for each window that closes.
            yield _with_truth(pa.Table.from_batches([batch]), truth if len(truth) else None, config, columns)

    copies = source.copies_in(folder / COPIES) if isinstance(source, Recorded) else None
    return stream_name(config, source, copies), batches()


def played(config: Config, folder: Path) -> Iterator[Chunk]:
    """Play the config's source: impressions and feedback in order of arrival. Copies of its files are made in
    `folder`."""
    source = config.source
    if isinstance(source, Generated):
        return generated_stream(source, config.rows, encoding=config.kafka.impressions.written).chunks(
            source.chunk_rows
        )
    assert isinstance(source, Recorded)
    return source.opened(config.rows, source.copies_in(folder / COPIES)).chunks(source.chunk_rows)


def _collecting_truth(chunks: Iterable[Chunk], truth: Truth) -> Iterator[Chunk]:
    for chunk in chunks:
        if chunk.truth is not None:
            truth.add(pa.Table.from_batches([chunk.truth]))
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
