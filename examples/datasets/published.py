"""A published data set: its files, its rows in SQL, and the roles of its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streaming.errors import BadInput
from streaming.sources.tables.engine import file_literal, literal

DAY_MS = 86_400_000
DAYS_BEGIN_MS = 946_684_800_000
"""2000-01-01: where data sets without dates begin."""

PLACE = "place_in_file"

Tables = Mapping[str, str]
"""By the name of a file without its ending, a relation in SQL."""


@dataclass(frozen=True)
class Dataset:
    """A data set in its published format.

    title    its name, for people
    files    names without endings, of which the first is that of the impressions
    optional of them, those that may be missing
    read     (files by name) -> relations in SQL by name
    rows     (relations) -> SELECT of the rows; without `event_time_ms` where `time` makes it. In the order of the
             files; else, where others are joined, in any order with the column PLACE, which says it
    time     of rows that have been written, by their number ROW and how many there are; None: rows have their times
    labels, vertical, user, id   columns, as `exfm init` takes them
    """

    title: str
    files: tuple[str, ...]
    read: Callable[[Mapping[str, list[Path]]], Tables]
    rows: Callable[[Tables], str]
    labels: tuple[str, ...]
    vertical: str | None
    user: str | None
    id: str | None = None
    optional: frozenset[str] = field(default_factory=frozenset)
    time: Callable[[int], str] | None = None
    group: str | None = None
    """A column, left out of the file, by whose values rows are counted for `time`: `rows_of_group`, and the number of
    the first, `first_of_group`."""

    def found(self, path: Path) -> dict[str, list[Path]]:
        """Files of the set at `path`: a folder, or the file of the impressions. Raises BadInput where one is
        missing."""
        if not path.exists():
            raise BadInput(f"{path}: no such file or folder; {self.title} is {self._words}")
        folder = path if path.is_dir() else path.parent
        there = {name: _named(folder, name) for name in self.files}
        if not path.is_dir():
            own = next((name for name in self.files if path in there[name]), self.files[0])
            there[own] = [path]
        if missing := [name for name, files in there.items() if not files and name not in self.optional]:
            raise BadInput(f"{folder} has no file {' and no file '.join(missing)}; {self.title} is {self._words}")
        return {name: files for name, files in there.items() if files}

    @property
    def _words(self) -> str:
        needed = [name for name in self.files if name not in self.optional]
        more = f", perhaps {', '.join(sorted(self.optional))}" if self.optional else ""
        needed = needed or ["some of its files"]
        return f"{', '.join(needed)} (.csv, .tsv, .txt, .dat or .parquet, perhaps .gz or .zst){more}: give their folder"


def _named(folder: Path, name: str) -> list[Path]:
    """Files of this name, whatever their ending; `*` stands for a number, in whose order they come."""
    pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)") + r"(\.\w+){0,2}")
    found = [(match, path) for path in folder.iterdir() if (match := pattern.fullmatch(path.name)) and path.is_file()]
    return [path for _, path in sorted(found, key=lambda pair: (int((pair[0][1] if "*" in name else 0) or 0), pair[1]))]


def numbered(relation: str) -> str:
    """Relation with the row number as a column `n`. A join does not keep the order of rows."""
    return f"(SELECT *, row_number() OVER () AS n FROM {relation})"


def csv(files: Iterable[Path], columns: Mapping[str, str] | Iterable[str], *, header: bool, more: str = "") -> str:
    """Relation of text files with given columns. Columns: name -> type; or names, all of them texts."""
    types = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, "VARCHAR")
    inner = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    names = ", ".join(file_literal(path) for path in files)
    said = "true" if header else "false"
    said += ", auto_detect = false, hive_partitioning = false"
    return f"read_csv([{names}], columns = {{{inner}}}, header = {said}{more})"
