"""A report of findings, as JSON and as text: what was seen, each finding with what to do, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines.data.findings import Finding, finding_lines, gravest_first, stops, verdict, wrapped
from pipelines.data.profile.column import ColumnProfile, columns_text
from pipelines.data.profile.profile import Profile
from pipelines.data.profile.times import day

MOST_VERTICALS = 8


@dataclass
class CheckReport:
    """Findings about `name`, the gravest first. `rows` there are, `looked_at` of them; `tables`: what was seen of them,
    as caption, head and rows. `profile`: of a config's stream."""

    name: str
    rows: int = 0
    looked_at: int = 0
    findings: list[Finding] = field(default_factory=list)
    columns: list[ColumnProfile] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    profile: Profile | None = None

    def __post_init__(self) -> None:
        self.findings = gravest_first(self.findings)
        if self.profile is not None:
            self.rows, self.looked_at = self.profile.rows or 0, self.profile.looked_at
            self.columns = self.profile.columns

    @property
    def stops(self) -> bool:
        return stops(self.findings)

    @property
    def verdict(self) -> str:
        return verdict(self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rows": self.rows,
            "looked_at": self.looked_at,
            "stops": self.stops,
            "verdict": self.verdict,
            "columns": [column.as_json() for column in self.columns],
            "findings": [finding.as_json() for finding in self.findings],
            "tables": self.tables,
            "sample": None if self.profile is None else self.profile.as_json(),
        }

    def text(self, width: int = 80) -> str:
        lines = [*_profile(self.profile, width), ""] if self.profile is not None else []
        if self.profile is None and self.rows:
            lines = [f"{self.name}: {self.rows:,} rows, {self.looked_at:,} looked at", ""]
        if self.columns:
            lines += [columns_text(self.columns, width), ""]
        if self.findings:
            lines += [*finding_lines(self.findings, width), ""]
        return "\n".join([*lines, self.verdict])


def _profile(profile: Profile, width: int) -> Iterator[str]:
    rows = "" if profile.rows is None else f"{profile.rows:,} rows, "
    yield f"{profile.origin}: {rows}{profile.looked_at:,} looked at in every column"
    if profile.time is not None:
        yield f"times      {day(profile.time.lowest_ms)} to {day(profile.time.highest_ms)} UTC"
    if profile.verticals:
        shown = ", ".join(f"{name} {count:,}" for name, count in profile.verticals.most_common(MOST_VERTICALS))
        more = len(profile.verticals) - MOST_VERTICALS
        yield from wrapped("verticals  " + shown + (f", {more:,} more" if more > 0 else ""), "", " " * 11, width)
    for name, seen in profile.labels.items():
        rule = f", positive: {seen.rule}" if seen.rule else ""
        yield f"task       {name}: {seen.positives:,} positives in {seen.known:,} rows ({seen.rate:.2%}){rule}"
