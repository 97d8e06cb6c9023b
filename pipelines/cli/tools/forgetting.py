"""Request to forget an id of a run's models, or to erase a person from a run, and its outcome, in words."""

from __future__ import annotations

import time
from collections.abc import Sequence

from exfm.features.features import FeatureSet
from exfm.models.engine import TEACHER
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.forgotten import ask_to_forget, forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.erasure.erasure import ErasurePlan
from pipelines.erasure.models import further_teachers, models_of
from pipelines.live.status.stored import run_lives
from pipelines.live.training.forgetting import ids_of
from streaming.errors import BadInput

LOOK_EVERY_S = 0.2


def forget(run_dir: RunDir, table: str, id: str, wait_s: float) -> str:
    """Ask the run to forget an id of a table; gives in words what came of it within `wait_s`.

    Raises BadInput where no model has the table, or the id is none of it.
    """
    config = with_roster(config_of(run_dir), run_dir.roster)
    holders = {worker: features for worker, features in models_of(config).items() if table in features.table_names}
    if not holders:
        tables = dict.fromkeys(name for features in models_of(config).values() for name in features.table_names)
        raise BadInput(f"no model of {run_dir.root} has a table `{table}`; its tables are {', '.join(tables)}")
    for features in holders.values():
        ids_of(features, config.rows, table, id)
    request, deadline = ask_to_forget(run_dir, table, id), time.monotonic() + wait_s
    lives = run_lives(run_dir.root)
    while lives and len(_done(run_dir, request.number, holders)) < len(holders) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        lives = run_lives(run_dir.root)
    done = _done(run_dir, request.number, holders)
    lines = [f"request {request.number}: id {id} of table `{table}`"]
    for worker in holders:
        unit = "block" if worker.startswith(TEACHER) else "lake_seq"
        later = "before it learns another row" + ("" if lives else ", once the run runs again")
        lines.append(f"  {worker}: " + (f"forgotten before {unit} {done[worker]:,}" if worker in done else later))
    if run_dir.replacement.exists():
        lines.append("  the candidate for the teacher's place: where the teacher does, or at its next block if later")
    lines += [f"  {said}" for said in dict.fromkeys(_shared(config, worker, table) for worker in holders) if said]
    left = ["rows of the lake", "predictions", "snapshots from before", *_kept_by_settlement(config, table)]
    lines.append(f"  These keep what they hold of it, until --everywhere: {', '.join(left)}.")
    return "\n".join(lines)


def _kept_by_settlement(config: Config, table: str) -> list[str]:
    """Counts and histories of events that the settlement keeps of a table's ids, in words."""
    columns = {name for f in config.features.tabled if f.name == table for name in f.reads}
    by = [f for f in config.rows.asof.features if columns & set(f.by)]
    others = [f for f in config.rows.asof.features if f not in by]
    listed = [f for f in others if columns & {*(f.of or ()), *(column.name for column in f.columns)}]
    found = []
    if by:
        found.append(
            f"as-of counts and lists of events by {' and '.join(sorted(columns))} ({', '.join(f.name for f in by)})"
        )
    if listed:
        found.append(f"lists of events in which it stands ({', '.join(f.name for f in listed)})")
    return found


def _done(run_dir: RunDir, number: int, workers: dict[str, FeatureSet]) -> dict[str, int]:
    """The positions at which workers did it, by worker."""
    at = dict(forgotten(run_dir).at)
    for worker in workers:
        if worker.startswith(f"{TEACHER}-"):  # they write it in folders of their own
            beside = RunDir(run_dir.further_teacher(worker.removeprefix(f"{TEACHER}-")))
            at[worker] = forgotten(beside).at.get(TEACHER, {})
    return {worker: at[worker][number] for worker in workers if number in at.get(worker, {})}


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
