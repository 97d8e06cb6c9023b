"""Request to forget an id of a run's models, or to erase a person from a run, and its outcome, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from exfm.features.features import FeatureSet
from exfm.models.engine import TEACHER
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.forgotten import ask_to_forget, forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.erasure.erasure import ErasurePlan
from pipelines.erasure.models import further_teachers, models_of
from pipelines.live.rules.kinds import Kind
from pipelines.live.status.stored import run_lives
from pipelines.live.training.forgetting import ids_of
from pipelines.report.words import moment
from streaming.asof.forgotten import AT_THE_END
from streaming.errors import BadInput
from streaming.schema import AsOfFeature

LOOK_EVERY_S = 0.2


def forget(run_dir: RunDir, table: str, id: str, wait_s: float) -> Iterator[str]:
    """Ask the run to forget an id of a table. Lines in words: what else it touches and what it leaves, before the run
    is asked; then what came of it within `wait_s`.

    Raises BadInput where no model has the table, or the id is none of it.
    """
    config = with_roster(config_of(run_dir), run_dir.roster)
    holders = {worker: features for worker, features in models_of(config).items() if table in features.table_names}
    if not holders:
        tables = dict.fromkeys(name for features in models_of(config).values() for name in features.table_names)
        raise BadInput(f"no model of {run_dir.root} has a table `{table}`; its tables are {', '.join(tables)}")
    for features in holders.values():
        ids_of(features, config.rows, table, id)
    columns = _columns_of(config, holders, table)
    known = [f for f in config.rows.asof.features if set(columns) & {*f.by, *f.of}]
    yield from dict.fromkeys(said for worker in holders if (said := _shared(config, worker, table)))
    yield from _about_asof(known, columns)
    left = ["rows of the lake", "predictions", "snapshots from before"]
    if known and config.follows is not None:
        left.append(f"as-of features, which {config.follows} makes")
    yield f"These keep what they hold of it, until --everywhere: {', '.join(left)}."
    workers = [*holders, *([Kind.AUGMENTATION] if known and config.follows is None else [])]
    request, deadline = ask_to_forget(run_dir, table, id, columns=columns), time.monotonic() + wait_s
    lives = run_lives(run_dir.root)
    while lives and len(_done(run_dir, request.number, workers)) < len(workers) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        lives = run_lives(run_dir.root)
    done = _done(run_dir, request.number, workers)
    yield f"request {request.number}: id {id} of table `{table}`"
    for worker in workers:
        later = "before it takes in another row" if worker == Kind.AUGMENTATION else "before it learns another row"
        yield f"  {worker}: " + done.get(worker, later + ("" if lives else ", once the run runs again"))
    if run_dir.replacement.exists():
        yield "  the candidate for the teacher's place: where the teacher does, or at its next block if later"


def _columns_of(config: Config, holders: Mapping[str, FeatureSet], table: str) -> list[str]:
    """Columns of rows that a table's ids come from; of a list of events, the one whose values it has."""
    listed = {f"{of.name}_{item}": item for of in config.rows.asof.features for item in of.of}
    reads = [f.reads[0] for features in holders.values() for f in features.tabled if f.name == table]
    columns = dict.fromkeys(listed.get(column, column) for column in reads)
    return [column for column in columns if column in config.rows.impression.names]


def _about_asof(known: Sequence[AsOfFeature], columns: Sequence[str]) -> Iterator[str]:
    """Lines on as-of features that know something of the columns' ids."""
    by = [f for f in known if set(columns) & set(f.by)]
    if by:
        yield f"As-of features by {' and '.join(columns)} begin anew for the id: {', '.join(f.name for f in by)}."
    if crossed := [f.name for f in by if len(f.by) > 1]:
        yield f"  Of {', '.join(crossed)}, by several columns, the keys of rows in the lake or waiting for labels."
    if listed := [f.name for f in known if set(columns) & set(f.of)]:
        yield f"Lists of events by other keys have 0 in its place: {', '.join(listed)}."


def _done(run_dir: RunDir, number: int, workers: Sequence[str]) -> dict[str, str]:
    """Words of the workers that have done it, by worker."""
    record = forgotten(run_dir)
    found = {}
    for worker in workers:
        at = record.at.get(worker, {})
        if worker.startswith(f"{TEACHER}-"):  # they write it in folders of their own
            beside = RunDir(run_dir.further_teacher(worker.removeprefix(f"{TEACHER}-")))
            at = forgotten(beside).at.get(TEACHER, {})
        if number not in at:
            continue
        if worker != Kind.AUGMENTATION:
            found[worker] = f"forgotten before {'block' if worker.startswith(TEACHER) else 'lake_seq'} {at[number]:,}"
        elif number in record.removed:
            removed, ended = record.removed[number], at[number] == AT_THE_END
            when = "behind the last row" if ended else f"before event time {moment(at[number])} UTC"
            gone = f"{removed.keys:,} keys, and {removed.entries:,} entries of lists by other keys"
            found[worker] = f"forgotten {when}: {gone}"
    return found


def _shared(config: Config, worker: str, table: str) -> str | None:
    """A warning about a table whose ids share rows."""
    if worker.startswith(TEACHER):
        teacher = further_teachers(config).get(worker, config.teacher)
        embeddings, features = teacher.model.embeddings, config.teacher_features
    else:
        student = next(student for student in config.students if f"student-{student.name}" == worker)
        embeddings, features = student.model.embeddings, config.student_features(student)
    kind = embeddings[table].kind if table in embeddings else "full"
    feature = next(feature for feature in features.tabled if feature.name == table)
    if kind == "full" and feature.transform != "hash":
        return None
    if kind == "managed" and feature.transform != "hash":
        return f"{worker}: ids that read its row of the fallback lose what they had learned there, too."
    if kind == "managed":
        return f"{worker}: ids of the same hash, modulo {feature.rows:,}, are one id here, and are forgotten together."
    return f"{worker}: the table is `{kind}`; ids that share the id's rows lose what they had learned there, too."


def text_of(plan: ErasurePlan) -> str:
    """A plan, or what came of it, in lines."""
    if plan.nothing and plan.done is None:
        return (
            "no row of the run matches: there is nothing to erase, and nothing was changed. What models keep by an id "
            "whose rows retention has deleted, they drop by --table and --id"
        )
    lines = [f"{rows:>9,}  {place}" for place, rows in plan.rows.items()]
    lines.append(f"{plan.share:.2%} of the lake's rows, in {len(plan.ranges):,} ranges of lake_seq")
    lines += _listed("tables of models that forget the ids", plan.tables)
    lines += _listed("removed", plan.removed)
    lines += _listed("stays", plan.kept)
    lines += _listed("outside, and yours to do", plan.outside)
    if plan.done is None:
        lines.append("nothing was changed; the same command with --yes erases")
    else:
        lines.append(
            f"erasure {plan.done.number}, complete at {plan.done.done_at}: it is in erasures.json, without the value"
        )
    return "\n".join(lines)


def _listed(head: str, entries: Sequence[str]) -> list[str]:
    return [f"{head}:", *(f"  {entry}" for entry in entries)] if entries else []
