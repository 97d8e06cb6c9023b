"""Files at a path and their form: Parquet, CSV or TSV, JSON lines; compressed or not; a folder; a Delta table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from streaming.errors import BadInput

Form = Literal["parquet", "table", "lines", "delta"]
PACKED = (".gz", ".gzip", ".zst", ".zstd")
ENDINGS: dict[Form, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "table": (".csv", ".tsv", ".txt", ".dat"),
    "lines": (".json", ".jsonl", ".ndjson"),
}
READ_AS_FILES = frozenset(["timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType"])
"""What a Delta table may have so that its rows are those of its files."""

SQL_TYPES = {
    "string": "VARCHAR", "long": "BIGINT", "integer": "INTEGER", "short": "SMALLINT", "byte": "TINYINT",
    "boolean": "BOOLEAN", "float": "FLOAT", "double": "DOUBLE", "date": "DATE", "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip
"""DuckDB's names of Delta's types."""

UNPACKED_TIMES = 4
"""How much larger packed text is, roughly, than the file."""


class Files(NamedTuple):
    """Files of one form, in the order of their names. `partitions`: the columns of a Delta table that stand in the
    names of its folders, and their types as DuckDB names them. `hive`: folders below the one that was given are named
    like columns, such as day=7."""

    paths: list[Path]
    form: Form
    partitions: Mapping[str, str] = {}
    hive: bool = False

    @property
    def is_one_parquet(self) -> bool:
        return self.form == "parquet" and len(self.paths) == 1

    @property
    def unpacked_bytes(self) -> int:
        """Uncompressed size; an estimate for compressed files."""
        sizes = ((path.stat().st_size, path.suffix.lower() in PACKED) for path in self.paths)
        return sum(size * (UNPACKED_TIMES if packed else 1) for size, packed in sizes)

    @property
    def words(self) -> str:
        return f"{len(self.paths):,} files" if len(self.paths) > 1 else self.paths[0].name

    @property
    def stamp(self) -> list[tuple[str, int, int]]:
        """Name, size and modification time (ns) of every file; a difference means the rows may differ."""
        states = ((path.name, path.stat()) for path in self.paths)
        return [(name, state.st_size, state.st_mtime_ns) for name, state in states]

    def digest(self) -> str:
        """Digest of all bytes, 16 hexadecimal digits."""
        total = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            with path.open("rb") as file:
                while block := file.read(1 << 22):
                    total.update(block)
            total.update(b"\0end of file")
        return total.hexdigest()


def files_at(path: Path) -> Files:
    """The files at `path`. Raises BadInput where there are none, or of several forms."""
    if not path.exists():
        raise BadInput(
            f"{path}: no such file or folder; give a Parquet, CSV, TSV or JSON-lines file, a folder, or a Delta table"
        )
    if path.is_dir():
        return _in_folder(path)
    form = "parquet" if is_parquet(path) else form_of(path)
    if form is None:
        names = ", ".join(ending for endings in ENDINGS.values() for ending in endings)
        raise BadInput(f"{path}: what it holds cannot be told from its name; name it {names}, perhaps .gz or .zst")
    return Files([path], form)


def is_parquet(path: Path) -> bool:
    """True for a Parquet file, by its name or its first bytes."""
    form = form_of(path)
    return form == "parquet" or (form is None and path.open("rb").read(4) == b"PAR1")


def _in_folder(path: Path) -> Files:
    if (path / "_delta_log").is_dir():
        return _of_delta(path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(("_", ".")))
    form_of_file = {file: form for file in files if (form := form_of(file)) is not None}
    forms = sorted(set(form_of_file.values()))
    if not form_of_file:
        raise BadInput(f"{path} holds no Parquet, CSV, TSV or JSON-lines file; their names say what they are")
    if len(forms) > 1:
        raise BadInput(f"{path} holds files of several forms ({', '.join(forms)}); give one of them")
    return Files(list(form_of_file), forms[0], hive=_hive(path, list(form_of_file)))


def _hive(folder: Path, files: Sequence[Path]) -> bool:
    """True if folders below are named like columns. Raises BadInput where some above are, too: they hold for all."""
    below = any("=" in part for file in files for part in file.relative_to(folder).parts[:-1])
    above = next((part for part in folder.parts if "=" in part), None)
    if below and above is not None:
        raise BadInput(
            f"{folder}: folders in it are columns, and so would `{above}` in its own path be; move it to a folder "
            "without ="
        )
    return below


def _of_delta(path: Path) -> Files:
    """The files of a Delta table's newest version; its folder holds those of older ones, too."""
    import deltalake

    try:
        table = deltalake.DeltaTable(path)
        features = set(table.protocol().reader_features or ())
        files = sorted(Path(uri.removeprefix("file://")) for uri in table.file_uris())
        kinds = {field.name: str(getattr(field.type, "type", field.type)) for field in table.schema().fields}
        partitions = {name: SQL_TYPES.get(kinds[name], kinds[name]) for name in table.metadata().partition_columns}
    except Exception as error:  # deltalake's own errors have no common class below this one
        raise BadInput(f"{path} cannot be read as a Delta table: {str(error).splitlines()[0]}") from None
    if strange := sorted(features - READ_AS_FILES):
        raise BadInput(
            f"{path} is a Delta table with {', '.join(strange)}: its files alone do not say which rows there are; "
            "write its rows as Parquet, with the program that wrote it, and give that"
        )
    if not files:
        raise BadInput(f"{path} has no rows; give a file that has some")
    return Files(files, "delta", partitions, hive=bool(partitions) and _hive(path, files))


def form_of(path: Path) -> Form | None:
    """
    >>> [form_of(Path(name)) for name in ("a.parquet", "a.csv.gz", "day_0.tsv", "a.jsonl.zst", "a.xls")]
    ['parquet', 'table', 'table', 'lines', None]
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return next((form for form, endings in ENDINGS.items() if last in endings), None)
