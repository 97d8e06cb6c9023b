"""A config and its data, checked before anything is started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.core.config.sections import Generated, Recorded
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.checks.compiler import judge_compiler
from pipelines.data.checks.features import judge_features
from pipelines.data.checks.labels import judge_labels
from pipelines.data.checks.memory import judge_memory
from pipelines.data.checks.precision import judge_precision
from pipelines.data.checks.recorded import sample_file
from pipelines.data.checks.rows import judge_rows
from pipelines.data.checks.sample import Sample
from pipelines.data.checks.times import judge_pace, judge_times
from pipelines.data.checks.topics import sample_topics
from pipelines.data.checks.verticals import judge_verticals
from pipelines.data.doctor.machine import total_memory
from pipelines.data.profile.finding import Finding, Severity, stop, verdict_line
from pipelines.live.workers.ingest import files_name
from streaming.errors import BadInput
from streaming.sources.tables.copies import Copies

SAMPLE_ROWS = 100_000


@dataclass
class Report:
    """All findings about `name`, the gravest first, and what was seen of its data."""

    name: str
    sample: Sample | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, findings: list[Finding]) -> None:
        order = list(Severity)
        self.findings = sorted([*self.findings, *findings], key=lambda finding: order.index(finding.severity))

    @property
    def stops(self) -> bool:
        return any(finding.severity is Severity.STOP for finding in self.findings)

    @property
    def verdict(self) -> str:
        return verdict_line(self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stops": self.stops,
            "verdict": self.verdict,
            "columns": [] if self.sample is None else [column.as_json() for column in self.sample.columns],
            "findings": [{**finding._asdict(), "severity": str(finding.severity)} for finding in self.findings],
            "sample": None if self.sample is None else self.sample.as_json(),
        }


def check_config(
    config: Config, *, rows: int = SAMPLE_ROWS, local: bool = False, copies: Copies | None = None
) -> Report:
    """Everything about a config that can be known before it runs; `rows` of its data are looked at in every column.

    copies: of files that cannot be played as they lie, for a run to find again; None: those made here are deleted.
    """
    if copies is None:
        with TemporaryDirectory() as folder:
            return check_config(config, rows=rows, local=local, copies=Copies(Path(folder)))
    report = Report(config.name)
    source = config.source
    sample: Sample | None = None
    wrong: list[Finding] = []
    if isinstance(source, Recorded):
        sample, wrong = sample_file(source, config.rows, rows, copies, config.limits)
    elif source is None and config.kafka.bootstrap_servers is not None:
        sample, wrong = sample_topics(config, rows)
    report.sample = sample
    report.add(wrong)
    report.add(list(judge_features(config, sample.batch if sample is not None else None)))
    report.add(list(judge_memory(config, total_memory(), local=local)))
    report.add(list(judge_compiler(config)))
    report.add(list(judge_precision(config)))
    if source is not None:
        report.add(list(judge_pace(source)))
    if isinstance(source, Generated):
        verticals = Counter({vertical.name: 1 for vertical in source.verticals})
        report.add(list(judge_verticals(config, verticals, whole=False)))
    if sample is not None:
        recorded = isinstance(source, Recorded)
        where = f"event time `{source.event_time if isinstance(source, Recorded) else 'event_time_ms'}`"
        unit = "source.event_time_unit" if recorded else None
        report.add(list(judge_times(sample, datetime.now(UTC).year, where, unit)))
        report.add(list(judge_rows(config, sample)))
        report.add(list(judge_labels(config, sample)))
        whole = sample.whole and recorded
        report.add(list(judge_verticals(config, sample.verticals, whole=whole)))
    return report


def check_again(config: Config, run_dir: RunDir) -> Report:
    """Of a run that was begun, what can have changed: the machine's processor, and whether its files are there and are
    those it was begun with."""
    report = Report(config.name)
    report.add(list(judge_precision(config)))
    source = config.source
    if run_dir.summary.exists() or not isinstance(source, Recorded):
        return report
    try:
        now = files_name(config, source, source.copies_in(run_dir.copies))
    except BadInput as error:
        report.add([stop("source.path", str(error))])
        return report
    if run_dir.source_files.exists() and run_dir.source_files.read_text() != now:
        seen = f"{source.path} is not the file that the run in {run_dir.root} was begun with, or was changed since"
        remedy = "put that one back, give another --run-dir, or start over with --fresh (deletes what is there)"
        report.add([stop("source.path", seen, remedy)])
    return report
