"""Comparison of two finished replays: their settings, and every common figure.

Gains of two replays are of different rows, seeds or code: their difference has the errors of both, as if independent.
Of the same rows it is surer than that says; put both arms into one spec to compare them in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.report.page import FOOT
from pipelines.report.cells import Figures
from pipelines.report.page import Block, Folded, Section, Words, page
from pipelines.report.table import Entry, TextTable
from pipelines.report.words import fixed, interval
from streaming.errors import BadInput

KINDS = ("replay.json", "sweep.json")
NORMAL = 1.96
ABOUT = ("config", "config_hash", "source", "one_stream", "rows", "events_ms", "code", "date")


@dataclass(frozen=True)
class ComparedReplays:
    """Two replays by name, with the figures of every student, task and arm that both have under their first
    condition."""

    names: tuple[str, str]
    reports: tuple[ReplayReport, ReplayReport]
    both: dict[tuple[str, str, str], tuple[Figures, Figures]]

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """Settings that differ between two reports, with both values."""
        one, other = (report.model_dump(mode="json") for report in self.reports)
        for key in ABOUT:
            if one["about"][key] != other["about"][key]:
                yield key, one["about"][key], other["about"][key]
        for key in sorted(one["spec"]):
            if one["spec"][key] != other["spec"].get(key):
                yield f"spec.{key}", one["spec"][key], other["spec"].get(key)

    def as_json(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "differences": [{"what": what, "values": [one, other]} for what, one, other in self.differences()],
            "verdicts": [[verdict.model_dump() for verdict in report.verdicts] for report in self.reports],
            "arms": [
                {"student": student, "task": task, "arm": arm, "ne": [of.value("ne") for of in pair],
                 "gain": [of.value("gain") for of in pair], "apart": _apart(*pair)}
                for (student, task, arm), pair in self.both.items()
            ],
        }  # fmt: skip

    def table(self) -> TextTable:
        one, other = self.names
        head = ["arm", f"NE, {one}", f"NE, {other}", f"gain %, {one}", f"gain %, {other}", "second less first"]
        rows = []
        for key, pair in self.both.items():
            apart = _apart(*pair)
            cells: list[Entry] = [fixed(of.value("ne")) for of in pair]
            cells += [of.interval("gain") for of in pair]
            rows.append([" · ".join(key), *cells, interval(*apart) if apart else None])
        return TextTable("under the first condition", head, rows)

    def page(self) -> str:
        """The comparison as a page that is whole by itself."""
        pairs = list(zip(self.names, self.reports, strict=True))
        words: list[Block] = [Words(f"{name}: {' '.join(v.words for v in report.verdicts)}") for name, report in pairs]
        rows = [[what, _short(one), _short(other)] for what, one, other in self.differences()]
        changed = TextTable("what was run differently", ["setting", *self.names], rows)
        specs: list[Block] = [Folded(f"Notes of {name}", [Words(note) for note in r.notes]) for name, r in pairs]
        sections = [
            Section("Verdict", "The verdicts", words),
            Section("Figures", "Every arm that both have", [self.table()]),
            Section("What was run", "What was run differently", [changed, *specs]),
        ]
        return page(f"{self.names[0]} and {self.names[1]}", sections, FOOT)


def compare(first: Path, second: Path) -> ComparedReplays:
    """Compare the folders of two finished replays. Raises BadInput where one is none, or both have no arm in common."""
    one, other = read_report(first), read_report(second)
    both = {}
    for student, task in one.table.students(one.spec.tuned_under):
        arms, others = one.table.arms(one.spec.tuned_under, student, task), other.table
        for arm, of in arms.items():
            match = others.of(other.spec.tuned_under, student, task, arm)
            if arm in one.spec.arms and match:
                both[student, task, arm] = (of, match)
    if not both:
        raise BadInput(f"{first} and {second} have no arm of a student and task in common; compare replays of one spec")
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    return ComparedReplays(names, (one, other), both)


def read_report(folder: Path) -> ReplayReport:
    """Read the report of a finished replay. Raises BadInput where the folder holds none, or one of another release."""
    for name in KINDS:
        if (folder / name).is_file():
            try:
                return ReplayReport.model_validate_json((folder / name).read_text())
            except ValidationError as error:
                where = ".".join(map(str, error.errors()[0]["loc"]))
                raise BadInput(
                    f"{folder / name} is of another release ({where}); run the replay again: finished parts are kept"
                ) from None
    raise BadInput(f"{folder} holds no finished replay: there is no {' or '.join(KINDS)} in it")


def _apart(one: Figures, other: Figures) -> tuple[float, float, float] | None:
    """The second gain less the first, with the errors of both."""
    errors = [of.value("gain/se") for of in (one, other)]
    gains = [of.value("gain") for of in (one, other)]
    if errors[0] is None or errors[1] is None or gains[0] is None or gains[1] is None:
        return None
    value, reach = gains[1] - gains[0], NORMAL * float((errors[0] ** 2 + errors[1] ** 2) ** 0.5)
    return value, value - reach, value + reach


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
