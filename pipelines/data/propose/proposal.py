"""`exfm init`: a look at a file, and a config that runs on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from pipelines.data.profile.finding import Finding, Severity
from pipelines.data.propose.columns import Seen, look
from pipelines.data.propose.config_text import Draft, config_text, student_name
from pipelines.data.propose.features import RECIPE, LeftOut, find_features, unbounded, useless
from pipelines.data.propose.feedback import as_column, with_feedback
from pipelines.data.propose.labels import MOST, Label, find_labels, possible
from pipelines.data.propose.prepared import as_it_lies, opened, prepared
from pipelines.data.propose.roles import find_roles
from pipelines.data.propose.sample import examine_sample
from pipelines.data.propose.sizes import live_sizes, sizes
from pipelines.data.propose.times import NOT_TIMES, another_time, event_time, order
from pipelines.data.propose.topics import SCHEME, AskedTopics, sample
from streaming.errors import BadInput
from streaming.sources.tables.engine import Engine
from streaming.store.files import write_text

MB = 1 << 20


@dataclass
class Asked:
    """What the caller said of the columns, instead of having it guessed. `header`: None: found out. `feedback`: a file
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
        """As they stand on a command line."""
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


@dataclass
class Begun:
    """What was written, and what was seen on the way, the gravest first."""

    config: Path
    data: Path
    rows: int
    columns: int
    said: tuple[str, ...]
    findings: list[Finding]
    draft: Draft


def begin(path: Path, out: Path, asked: Asked = Asked(), *, force: bool = False) -> Begun:
    """Look at the rows at `path`, and write a config of them to `out`; where a recorded source cannot read the file,
    also a copy next to it, `out` with `.parquet` behind its name.

    Raises BadInput where there is nothing to read, no label, or something there that would be overwritten.
    """
    copy = out.with_suffix(".parquet")
    _free(out, force)
    if copy.absolute() == path.absolute():
        copy = out.with_name(f"{out.stem}.prepared.parquet")
    out.parent.mkdir(parents=True, exist_ok=True)
    staged = copy.with_name(f".{copy.name}.staged")
    with Engine(out.parent) as engine:
        try:
            draft, columns = _draft(engine, path, out, copy, staged, asked, force)
        finally:
            staged.unlink(missing_ok=True)
    text = config_text(draft)
    write_text(out, text)
    draft.memory = _memory(out)
    write_text(out, config_text(draft))
    return Begun(out, draft.prepared.path, draft.rows, columns, draft.prepared.said, draft.findings, draft)


def begin_on_topics(asked_topics: AskedTopics, out: Path, asked: Asked = Asked(), *, force: bool = False) -> Begun:
    """Look at a sample of Kafka topics, and write a config to `out` that reads them. Nothing else is written.

    Raises BadInput for topics that a stream cannot read, BrokerAway.
    """
    _free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.stem}-") as name:
        folder = Path(name)
        found = sample(asked_topics, folder)
        kinds = sorted(set(pq.read_table(found.feedback)["task"].to_pylist()))
        asked = replace(asked, id="impression_id", time="event_time_ms", vertical="vertical", feedback=found.feedback)
        with Engine(folder) as engine:
            draft, columns = _draft(engine, found.impressions, out, folder / "c.parquet", folder / "s", asked, force)
    draft.origin = f"{SCHEME}{asked_topics.servers}/{asked_topics.impressions}"
    draft.made_with = ["--feedback-topic", asked_topics.feedback]
    draft.prepared = draft.prepared._replace(path=Path(draft.origin), said=tuple(found.said))
    draft.path, draft.kafka = draft.origin, found.kafka
    draft.rows, draft.sizes = found.rows, live_sizes(found.rows, draft.labels[0].positives)
    draft.labels = _as_on_the_topic(draft.labels, kinds)
    unnamed = [f for f in draft.features if f.name != f.source]  # messages are read by the names that they have
    draft.features = [unbounded(f) for f in draft.features if f.name == f.source]
    draft.left_out += [LeftOut(f.source, "no name that a column of rows can have") for f in unnamed]
    write_text(out, config_text(draft))
    draft.memory = _memory(out)
    write_text(out, config_text(draft))
    return Begun(out, Path(draft.origin), draft.rows, columns, draft.prepared.said, draft.findings, draft)


def _as_on_the_topic(labels: list[Label], kinds: Collection[str]) -> list[Label]:
    """Tasks by the names that feedback has for them."""
    names = {label.task: next(k for k in kinds if as_column(k) == label.guess.column) for label in labels}
    return [label._replace(task=names[label.task], given=names.get(label.given or "")) for label in labels]


def _memory(config: Path) -> str:
    """What the tables of a config take, which is loaded for that: so it is valid. Torch comes with it; the statistics
    are done by now, and their memory is given back."""
    from pipelines.core.config.settings import load
    from pipelines.data.checks.memory import student_bytes, teacher_bytes

    loaded = load(config)
    students = sum(student_bytes(loaded, student) for student in loaded.students)
    return (
        f"tables: teacher and its scoring copy {teacher_bytes(loaded) / MB:,.0f} MB, students with twins "
        f"{students / MB:,.0f} MB"
    )


def _free(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise BadInput(f"{path} is there already; name another with -o, or overwrite it with --force")


def _draft(
    engine: Engine, path: Path, out: Path, copy: Path, staged: Path, asked: Asked, force: bool
) -> tuple[Draft, int]:
    source = opened(engine, path, staged, asked.header, asked.encoding)
    this_year = datetime.now(UTC).year
    if asked.feedback is not None:
        source, tasks = with_feedback(engine, source, asked.feedback, staged, this_year, asked.id)
        asked = replace(asked, labels=asked.labels or tasks)
    columns = look(engine, source.path)
    rows = next(iter(columns.values())).rows
    _there(path, columns, [*asked.labels, *asked.roles.values(), *([asked.time] if asked.time else [])])
    time, findings = event_time(engine, source.path, columns, this_year, asked.time)
    if asked.time is not None and time.guess.column is None:
        raise BadInput(f"{path}: `{asked.time}` is {columns[asked.time].type}, and not every value of it is a time")
    back, odd = order(engine, source.path, time)
    findings += odd
    labels, odd, doubtful = find_labels(engine, source.path, columns, time, asked.labels, this_year + 1)
    findings += odd
    _labels_there(engine, path, source.path, columns, labels, asked)
    known = {time.guess.column, *(label.guess.column for label in labels)}
    roles, odd = find_roles(engine, source.path, columns, labels, known, asked.roles)
    findings += odd
    named_ones = {*asked.roles.values(), *asked.labels}
    left_out = _left_out(columns, known, labels, this_year + 1, roles.id.column, roles.vertical.column)
    left_out |= dict.fromkeys(doubtful, "it may be a label, too")
    hidden = {name for name, column in columns.items() if name in left_out or useless(column, named_ones) is not None}
    seen = examine_sample(engine, source.path, columns, time, labels, roles, hidden)
    findings += [f for f in seen.findings if not f.where.startswith("duplicates")]
    for finding in seen.findings:
        kind, _, name = finding.where.partition(": ")
        if kind == "leakage" and finding.severity is Severity.STOP and name in columns and name not in left_out:
            left_out[name] = f"knows the label: {finding.seen}"
    logged, propensity = dict[str, str](), roles.propensity
    if propensity.column is not None:
        logged[propensity.column] = f"a propensity, for `exfm replay`: {propensity.words}"
    features, useless_columns, odd = find_features(columns, left_out, logged, named_ones)
    findings += odd
    ready = as_it_lies(path, source, columns, time, back)
    if ready is None:
        _free(copy, force)
        ready = prepared(engine, source, columns, time, back, copy)
    severities = list(Severity)
    findings.sort(key=lambda finding: severities.index(finding.severity))
    positives = labels[0].positives
    draft = Draft(
        name=student_name(out.stem, set()),
        header=asked.header,
        encoding=asked.encoding,
        origin=path.name,
        path=os.path.relpath(ready.path.absolute(), out.parent.absolute()),
        rows=rows,
        prepared=ready,
        made=ready.path == copy,
        time=time,
        labels=labels,
        roles=roles,
        id_type="string" if roles.id.column and _is_text(columns[roles.id.column]) else "int64",
        features=features,
        left_out=useless_columns,
        findings=[_named_as_left_out(finding, left_out) for finding in findings],
        sizes=sizes(rows, positives),
        made_with=asked.arguments,
    )
    return draft, len(columns)


def _is_text(ids: Seen) -> bool:
    """Whether ids are texts, or too large for int64."""
    return ids.kind == "text" or (ids.high is not None and ids.high >= 2**63)


def _named_as_left_out(finding: Finding, left_out: Mapping[str, str]) -> Finding:
    """What stops a run with a feature does not stop one without it."""
    kind, _, name = finding.where.partition(": ")
    if kind == "leakage" and name in left_out and finding.severity is Severity.STOP:
        return finding._replace(severity=Severity.WARN, remedy=f"it is left out; {finding.remedy}")
    return finding


def _there(path: Path, columns: Mapping[str, Seen], named: Collection[str]) -> None:
    for name in named:
        if name not in columns:
            raise BadInput(f"{path} has no column `{name}`; it has {', '.join(columns)}")


def _labels_there(
    engine: Engine, path: Path, parquet: Path, columns: Mapping[str, Seen], labels: list[Label], asked: Asked
) -> None:
    found = [label.guess.column for label in labels]
    if refused := [name for name in asked.labels if name not in found]:
        if len(asked.labels) > MOST and refused[0] in asked.labels[MOST:]:
            raise BadInput(f"{len(asked.labels)} labels are named, and {MOST} are taken at most")
        kind = columns[refused[0]].type.lower()
        raise BadInput(
            f"{path}: `{refused[0]}` is {kind} with {columns[refused[0]].distinct:,} distinct values, and which of "
            "them are positive is not clear; a label is 0 and 1, true and false, yes and no, or a count"
        )
    if not found:
        if shown := [name for name, column in columns.items() if column.form == "shown"]:
            raise BadInput(
                f"{path}: no column is a label, but `{shown[0]}` holds lists of what was shown, each with 1 or 0 for "
                f"clicked or not; {RECIPE} (x: {shown[0]})"
            )
        able = [name for name, column in columns.items() if possible(engine, parquet, column)]
        could = (
            f"; these could be: {', '.join(able[:20])}" if able else "; no column has two values that say yes and no"
        )
        raise BadInput(
            f"{path}: no column is a label by its name and values{could}; name it with --label COLUMN, of "
            f"{', '.join(columns)}"
        )


def _left_out(
    columns: Mapping[str, Seen], known: Collection[str | None], labels: list[Label], last_year: int, *roles: str | None
) -> dict[str, str]:
    """Columns that are no features, and why; no words where the config says what they are."""
    found = dict.fromkeys([name for name in (*known, *roles) if name is not None], "")
    settings = [label.setting for label in labels]
    for setting in settings:
        for key in ("delay_column", "time_column"):
            if key in setting:
                found[setting[key]] = ""
    for name, column in columns.items():
        if name not in found and another_time(column, last_year):
            found[name] = "another time: it never comes again"
            if column.words & NOT_TIMES:
                found[name] = f"an id by its name, a {column.type.lower()} in the file: rows hold no times; write text"
    return found


def summary(begun: Begun) -> Iterator[str]:
    """What was found, a line each."""
    draft = begun.draft
    yield f"{draft.origin}: {begun.rows:,} rows, {begun.columns} columns"
    for text in begun.said:
        yield f"  {text}"
    if draft.made:
        yield f"  copied to {begun.data}"
    told = [
        ("event time", draft.time.guess.column, draft.time.guess.words),
        ("id", draft.roles.id.column, draft.roles.id.words),
        ("vertical", draft.roles.vertical.column, draft.roles.vertical.words),
        ("user", draft.roles.user.column, draft.roles.user.words),
        *((f"task {label.task}", label.guess.column, label.guess.words) for label in draft.labels),
    ]
    for what, column, words in told:
        yield f"  {what:<11} {column or '–'}: {words}"
    kinds = [f.kind for f in draft.features]
    counts = [f"{kinds.count(kind)} {kind}" for kind in ("sparse", "dense", "sequence") if kinds.count(kind)]
    yield f"  features    {', '.join(counts) or 'the vertical alone'}; {len(draft.left_out)} left out"
