"""A config and its data, checked before anything is started: rules(profile, config)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.core.config.sections import Generated, Recorded
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.checks.features import judge_features
from pipelines.data.checks.labels import judge_labels
from pipelines.data.checks.machine import judge_cluster, judge_compiler, judge_memory, judge_precision
from pipelines.data.checks.report import CheckReport
from pipelines.data.checks.rows import judge_rows
from pipelines.data.checks.times import judge_pace, judge_times
from pipelines.data.checks.verticals import judge_verticals
from pipelines.data.doctor.machine import total_memory
from pipelines.data.findings import Finding, Rules
from pipelines.data.profile.profile import Profile
from pipelines.data.profile.recorded import profile_recorded
from pipelines.data.profile.topics import profile_topics
from pipelines.live.workers.ingest import files_name
from streaming.errors import BadInput
from streaming.sources.tables.copies import Copies

RULES = Rules("""
stop  source.gone  source.path
    {problem}
stop  source.changed  source.path
    {path} is not the file that the run in {run} was begun with, or was changed since
    -> put that one back, give another --run-dir, or start over with --fresh (deletes what is there)
""")

SAMPLE_ROWS = 100_000


def check_config(
    config: Config, *, rows: int = SAMPLE_ROWS, local: bool = False, copies: Copies | None = None
) -> CheckReport:
    """Check everything about a config that can be known before it runs; `rows` of its data are examined in every
    column.

    copies: of files that cannot be played as they lie, for a run to find again; None: those made here are deleted.
    """
    if copies is None:
        with TemporaryDirectory() as folder:
            return check_config(config, rows=rows, local=local, copies=Copies(Path(folder)))
    source = config.source
    profile: Profile | None = None
    findings: list[Finding] = []
    if isinstance(source, Recorded):
        profile, findings = profile_recorded(source, config.rows, rows, copies, config.limits)
    elif source is None and config.kafka.bootstrap_servers is not None:
        profile, findings = profile_topics(config, rows)
    findings += judge_features(config, profile.batch if profile is not None else None)
    findings += judge_memory(config, total_memory(), local=local)
    findings += [*judge_compiler(config), *judge_precision(config), *judge_cluster(config), *judge_pace(config)]
    if isinstance(source, Generated):
        verticals = Counter({vertical.name: 1 for vertical in source.verticals})
        findings += judge_verticals(config, verticals, whole=False)
    if profile is not None:
        findings += [*judge_times(config, profile), *judge_rows(config, profile), *judge_labels(config, profile)]
        findings += judge_verticals(config, profile.verticals, whole=profile.whole and isinstance(source, Recorded))
    return CheckReport(config.name, findings=findings, profile=profile)


def check_again(config: Config, run_dir: RunDir) -> CheckReport:
    """Findings of what can have changed since a run was begun: the machine's processor, and whether its files are
    there and are those it was begun with."""
    findings, source = list(judge_precision(config)), config.source
    if isinstance(source, Recorded) and not run_dir.summary.exists():
        try:
            now = files_name(config, source, source.copies_in(run_dir.copies))
            if run_dir.source_files.exists() and run_dir.source_files.read_text() != now:
                findings.append(RULES("source.changed", path=source.path, run=run_dir.root))
        except BadInput as error:
            findings.append(RULES("source.gone", problem=error))
    return CheckReport(config.name, findings=findings)
