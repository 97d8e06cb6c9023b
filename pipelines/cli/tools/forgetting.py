"""Request to forget an id of a run's models, and its outcome."""

from __future__ import annotations

import time

from exfm.features.features import FeatureSet
from exfm.models.engine import TEACHER
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import FurtherTeacher
from pipelines.core.run_dir.forgotten import ask_to_forget, forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import run_lives
from pipelines.live.training.forgetting import ids_of
from streaming.errors import BadInput

LOOK_EVERY_S = 0.2


def forget(run_dir: RunDir, table: str, id: str, wait_s: float) -> str:
    """Ask the run to forget an id of a table; gives in words what came of it within `wait_s`.

    Raises BadInput where no model has the table, or the id is none of it.
    """
    config = with_roster(config_of(run_dir), run_dir.roster)
    holders = {worker: features for worker, features in _models(config).items() if table in features.table_names}
    if not holders:
        tables = dict.fromkeys(name for features in _models(config).values() for name in features.table_names)
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
    lines.append("  Rows of the lake, predictions, and snapshots from before keep what they hold of it.")
    return "\n".join(lines)


def _models(config: Config) -> dict[str, FeatureSet]:
    """Features of the models that forget, by worker."""
    teachers = [] if config.follows is not None else [TEACHER, *_further(config)]
    found = dict.fromkeys(teachers, config.teacher_features)
    return found | {f"student-{student.name}": config.student_features(student) for student in config.students}


def _further(config: Config) -> dict[str, FurtherTeacher]:
    """Further teachers by worker."""
    return {f"{TEACHER}-{each.name}": each for each in config.teachers}


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
        teacher = _further(config).get(worker, config.teacher)
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
