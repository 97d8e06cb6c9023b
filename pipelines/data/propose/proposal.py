"""`exfm init`: a look at a file, and a config that runs on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.data.checks.examine import examined
from pipelines.data.findings import Finding, Severity, gravest_first
from pipelines.data.profile.column import ColumnProfile
from pipelines.data.profile.file import FileProfile, profile_file
from pipelines.data.propose.asof import find_asof
from pipelines.data.propose.config_text import Proposal, config_text, student_name
from pipelines.data.propose.features import RECIPE, SkippedColumn, find_features, unbounded, useless
from pipelines.data.propose.feedback import as_column, with_feedback
from pipelines.data.propose.labels import MOST, Label, find_labels, possible
from pipelines.data.propose.prepared import as_it_lies, opened, prepared
from pipelines.data.propose.roles import Roles, find_roles
from pipelines.data.propose.sizes import live_sizes, sizes
from pipelines.data.propose.times import NOT_TIMES, EventTimeColumn, another_time, event_time, order
from pipelines.data.propose.topics import SCHEME, TopicRequest, sample
from streaming.errors import BadInput
from streaming.sources.tables.engine import TableEngine, quoted
from streaming.sources.tables.in_order import ROW
from streaming.store.files import write_text

SAMPLED_VALUES, LEAST_SAMPLED, MOST_SAMPLED = 4_000_000, 50_000, 200_000
"""Values, and least and most rows, that are looked at for features that know the label."""
MB = 1 << 20


@dataclass
class Hints:
    """Columns that the caller named, instead of having them guessed. `header`: None: found out. `feedback`: a file
    of labels. `encoding`: None: UTF-8."""

    labels: tuple[str, ...] = ()
    time: str | None = None
    id: str | None = None
    vertical: str | None = None
    user: str | None = None
    header: bool | None = None
    feedback: Path | None = None
    encoding: str | None = None

    @property
    def roles(self) -> dict[str, str]:
        named = {"id": self.id, "vertical": self.vertical, "user": self.user}
        return {role: column for role, column in named.items() if column is not None}

    @property
    def arguments(self) -> list[str]:
        """The same as command-line arguments."""
        words = [word for label in self.labels for word in ("--label", label)]
        for option, column in (("--time", self.time), *((f"--{role}", c) for role, c in self.roles.items())):
            words += [option, column] if column is not None else []
        if self.header is not None:
            words.append("--header" if self.header else "--no-header")
        if self.encoding is not None:
            words += ["--encoding", self.encoding]
        if self.feedback is not None:
            words += ["--feedback", self.feedback.name]
        return words


def begin(path: Path, out: Path, hints: Hints = Hints(), *, force: bool = False) -> Proposal:
    """Examine the rows at `path`, and write a config for them to `out`; if a recorded source cannot read the file, also
    a copy next to it, `out` with `.parquet` behind its name.

    Raises BadInput where there is nothing to read, no label, or something there that would be overwritten.
    """
    copy = out.with_suffix(".parquet")
    _free(out, force)
    if copy.absolute() == path.absolute():
        copy = out.with_name(f"{out.stem}.prepared.parquet")
    out.parent.mkdir(parents=True, exist_ok=True)
    staged = copy.with_name(f".{copy.name}.staged")
    with TableEngine(out.parent) as engine:
        try:
            proposal = _proposed(engine, path, out, copy, staged, hints, force)
        finally:
            staged.unlink(missing_ok=True)
    return _written(proposal)


def begin_on_topics(request: TopicRequest, out: Path, hints: Hints = Hints(), *, force: bool = False) -> Proposal:
    """Examine a sample of Kafka topics, and write a config to `out` that reads them. Nothing else is written.

    Raises BadInput for topics that a stream cannot read, BrokerAway.
    """
    _free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.stem}-") as name:
        folder = Path(name)
        sampled = sample(request, folder)
        kinds = sorted(set(pq.read_table(sampled.feedback)["task"].to_pylist()))
        hints = replace(hints, id="impression_id", time="event_time_ms", vertical="vertical", feedback=sampled.feedback)
        with TableEngine(folder) as engine:
            proposal = _proposed(engine, sampled.impressions, out, folder / "c.parquet", folder / "s", hints, force)
    proposal.origin = f"{SCHEME}{request.servers}/{request.impressions}"
    proposal.made_with = ["--feedback-topic", request.feedback]
    proposal.prepared = proposal.prepared._replace(path=Path(proposal.origin), said=tuple(sampled.said))
    proposal.path, proposal.kafka = proposal.origin, sampled.kafka
    proposal.rows, proposal.sizes = sampled.rows, live_sizes(sampled.rows, proposal.labels[0].positives)
    names = _names_on_the_topic(proposal.labels, kinds)
    proposal.labels = [
        label._replace(task=names[label.task], given=names.get(label.given or "")) for label in proposal.labels
    ]
    unnamed = [f for f in proposal.features if f.name != f.source]  # messages are read by the names that they have
    proposal.features = [unbounded(f) for f in proposal.features if f.name == f.source]
    proposal.left_out += [SkippedColumn(f.source, "no name that a column of rows can have") for f in unnamed]
    proposal.asof = proposal.asof.renamed(names, [f.name for f in proposal.features])
    return _written(proposal)


def _written(proposal: Proposal) -> Proposal:
    write_text(proposal.config, config_text(proposal))
    proposal.memory = _memory(proposal.config)
    write_text(proposal.config, config_text(proposal))
    return proposal


def _names_on_the_topic(labels: list[Label], kinds: Collection[str]) -> dict[str, str]:
    """Names that feedback has for the tasks."""
    return {label.task: next(k for k in kinds if as_column(k) == label.guess.column) for label in labels}


def _memory(config: Path) -> str:
    """Memory that the tables of a config take, which is loaded for that: so it is valid. Torch comes with it; the
    statistics are done by now, and their memory is given back."""
    from pipelines.core.config.settings import load
    from pipelines.data.checks.machine import student_bytes, teacher_bytes

    loaded = load(config)
    students = sum(student_bytes(loaded, student) for student in loaded.students)
    return (
        f"tables: teacher and its scoring copy {teacher_bytes(loaded) / MB:,.0f} MB, students with twins "
        f"{students / MB:,.0f} MB"
    )


def _free(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise BadInput(f"{path} is there already; name another with -o, or overwrite it with --force")


def _proposed(
    engine: TableEngine, path: Path, out: Path, copy: Path, staged: Path, hints: Hints, force: bool
) -> Proposal:
    source = opened(engine, path, staged, hints.header, hints.encoding)
    this_year = datetime.now(UTC).year
    if hints.feedback is not None:
        source, tasks = with_feedback(engine, source, hints.feedback, staged, this_year, hints.id)
        hints = replace(hints, labels=hints.labels or tasks)
    file = profile_file(engine, source.path)
    columns = file.columns
    for name in (*hints.labels, *hints.roles.values(), *([hints.time] if hints.time else [])):
        if name not in columns:
            raise BadInput(f"{path} has no column `{name}`; it has {', '.join(columns)}")
    time, findings = event_time(file, this_year, hints.time)
    if hints.time is not None and time.guess.column is None:
        raise BadInput(f"{path}: `{hints.time}` is {columns[hints.time].type}, and not every value of it is a time")
    back, odd_times = order(file, time)
    labels, odd_labels, doubtful = find_labels(file, time, hints.labels, this_year + 1)
    _labels_there(path, file, labels, hints)
    known = {time.guess.column, *(label.guess.column for label in labels)}
    roles, odd_roles = find_roles(file, labels, known, hints.roles)
    named_ones = {*hints.roles.values(), *hints.labels}
    left_out = _left_out(columns, known, labels, this_year + 1, roles.id.column, roles.vertical.column)
    left_out |= dict.fromkeys(doubtful, "it may be a label, too")
    hidden = {name for name, column in columns.items() if name in left_out or useless(column, named_ones) is not None}
    of_rows = [f for f in examined(_sample(file, time, labels, roles, hidden)).findings if f.id != "supply.repeats"]
    for finding in of_rows:
        name = finding.where.partition(": ")[2]
        if finding.id in LEAKS and finding.severity is Severity.STOP and name in columns and name not in left_out:
            left_out[name] = f"knows the label: {finding.seen}"
    logged, propensity = dict[str, str](), roles.propensity
    if propensity.column is not None:
        logged[propensity.column] = f"a propensity, for `exfm replay`: {propensity.words}"
    features, without, odd_columns = find_features(file, left_out, logged, named_ones)
    asof = find_asof(file, time, back, labels, roles, features)
    ready = as_it_lies(path, source, file, time, back)
    if ready is None:
        _free(copy, force)
        ready = prepared(source, file, time, back, copy)
    findings = [*findings, *odd_times, *odd_labels, *asof.findings, *odd_roles, *of_rows, *odd_columns]
    return Proposal(
        config=out,
        columns=len(columns),
        name=student_name(out.stem, set()),
        header=hints.header,
        encoding=hints.encoding,
        origin=path.name,
        path=os.path.relpath(ready.path.absolute(), out.parent.absolute()),
        rows=file.rows,
        prepared=ready,
        made=ready.path == copy,
        time=time,
        labels=labels,
        roles=roles,
        id_type="string" if roles.id.column and _is_text(columns[roles.id.column]) else "int64",
        features=features,
        asof=asof,
        left_out=without,
        findings=[_named_as_left_out(finding, left_out) for finding in gravest_first(findings)],
        sizes=sizes(file.rows, labels[0].positives),
        made_with=hints.arguments,
    )


def _sample(
    file: FileProfile, time: EventTimeColumn, labels: list[Label], roles: Roles, hidden: Collection[str]
) -> pa.Table:
    """Rows evenly taken over the whole file, in order of time, as `examined` takes them: all columns but `hidden` ones,
    under their own names."""
    seen = [c for c in file.columns.values() if c.name not in hidden and c.kind not in ("other", "time")]
    wanted = min(MOST_SAMPLED, max(LEAST_SAMPLED, SAMPLED_VALUES // max(1, len(seen))))
    selected = {"event_time_ms": time.sql}
    selected |= {f"label_{label.task}": f"({label.sql})::TINYINT" for label in labels}
    if roles.vertical.column is not None:
        selected["vertical"] = f"{file.columns[roles.vertical.column].sql}::VARCHAR"
    names = {"vertical", *selected}
    selected |= {c.name: c.sql for c in seen if c.name not in names} | {"impression_id": ROW}
    sqls = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in selected.items())
    rows = f"SELECT {sqls} FROM {file.relation} WHERE {ROW} % {-(-file.rows // wanted)} = 0"
    table = file.engine.arrow(f"SELECT * FROM ({rows}) ORDER BY event_time_ms, impression_id")
    columns = (column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column for column in table.columns)
    return pa.table(list(columns), names=table.column_names)


LEAKS = ("leak.value", "leak.filled")


def _is_text(ids: ColumnProfile) -> bool:
    """True if ids are texts, or too large for int64."""
    return ids.kind == "text" or (ids.high is not None and ids.high >= 2**63)


def _named_as_left_out(finding: Finding, left_out: Mapping[str, str]) -> Finding:
    """Downgrade findings of features that are left out: they do not stop a run without these."""
    if finding.id in LEAKS and finding.where.partition(": ")[2] in left_out and finding.severity is Severity.STOP:
        return finding._replace(severity=Severity.WARN, remedy=f"it is left out; {finding.remedy}")
    return finding


def _labels_there(path: Path, file: FileProfile, labels: list[Label], hints: Hints) -> None:
    taken, columns = [label.guess.column for label in labels], file.columns
    if refused := [name for name in hints.labels if name not in taken]:
        if len(hints.labels) > MOST and refused[0] in hints.labels[MOST:]:
            raise BadInput(f"{len(hints.labels)} labels are named, and {MOST} are taken at most")
        kind = columns[refused[0]].type.lower()
        raise BadInput(
            f"{path}: `{refused[0]}` is {kind} with {columns[refused[0]].distinct:,} distinct values, and which of "
            "them are positive is not clear; a label is 0 and 1, true and false, yes and no, or a count"
        )
    if taken:
        return
    if shown := [name for name, column in columns.items() if column.form == "shown"]:
        raise BadInput(
            f"{path}: no column is a label, but `{shown[0]}` holds lists of what was shown, each with 1 or 0 for "
            f"clicked or not; {RECIPE} (x: {shown[0]})"
        )
    able = [name for name, column in columns.items() if possible(file, column)]
    could = f"; these could be: {', '.join(able[:20])}" if able else "; no column has two values that say yes and no"
    raise BadInput(
        f"{path}: no column is a label by its name and values{could}; name it with --label COLUMN, of "
        f"{', '.join(columns)}"
    )


def _left_out(
    columns: Mapping[str, ColumnProfile],
    known: Collection[str | None],
    labels: list[Label],
    last_year: int,
    *roles: str | None,
) -> dict[str, str]:
    """Columns that are no features, and why; no words where the config says what they are."""
    delays = [label.setting.get(key) for label in labels for key in ("delay_column", "time_column")]
    left_out = {name: "" for name in (*known, *roles, *delays) if name is not None}
    for name, column in columns.items():
        if name not in left_out and another_time(column, last_year):
            left_out[name] = "another time: it never comes again"
            if column.words & NOT_TIMES:
                left_out[name] = (
                    f"an id by its name, a {column.type.lower()} in the file: rows hold no times; write text"
                )
    return left_out


def summary(proposal: Proposal) -> Iterator[str]:
    """Lines of what was guessed."""
    yield f"{proposal.origin}: {proposal.rows:,} rows, {proposal.columns} columns"
    for text in proposal.said:
        yield f"  {text}"
    if proposal.made:
        yield f"  copied to {proposal.prepared.path}"
    told = [
        ("event time", proposal.time.guess.column, proposal.time.guess.words),
        ("id", proposal.roles.id.column, proposal.roles.id.words),
        ("vertical", proposal.roles.vertical.column, proposal.roles.vertical.words),
        ("user", proposal.roles.user.column, proposal.roles.user.words),
        *((f"task {label.task}", label.guess.column, label.guess.words) for label in proposal.labels),
    ]
    for what, column, words in told:
        yield f"  {what:<11} {column or '–'}: {words}"
    kinds = [f.kind for f in proposal.features]
    counts = [f"{kinds.count(kind)} {kind}" for kind in ("sparse", "dense", "sequence") if kinds.count(kind)]
    counts += [f"{len(proposal.asof.taken)} as-of"] if proposal.asof.taken else []
    yield f"  features    {', '.join(counts) or 'the vertical alone'}; {len(proposal.left_out)} left out"
