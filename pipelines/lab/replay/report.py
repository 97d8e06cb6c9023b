"""The result of a replay: what was run, one table of cells, and a verdict for each task."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from exfm.metrics.discoveries import e_bh
from exfm.metrics.estimates import estimate_ratio, remainder
from exfm.models.served import ServedStudent
from exfm.parallel.planning.cost import flops_per_example
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.config.topics import Frozen
from pipelines.lab.judging.comparison import mean_over_students
from pipelines.lab.parts import load_part
from pipelines.lab.replay.choice import Choices
from pipelines.lab.replay.flops import TrainingFlops, teacher_flops, training_flops
from pipelines.lab.replay.judge import JudgedStudent
from pipelines.lab.replay.settings import EXTENSIONS, Spec
from pipelines.lab.replay.stream import labels_under
from pipelines.lab.replay.verdict import Verdict, verdicts
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import LogitSource
from pipelines.report.cells import MEAN, Cell, Cells, Estimated, Key, Measure, cells
from pipelines.report.results.summary import PACKAGES
from streaming.lake.logit_set import LogitSet

FALSE_SHARE = 0.05
"""The share of what e-BH finds that is expected to be false."""


class About(Frozen):
    """Description of a replay: its spec, and its rows."""

    config: str
    config_hash: str
    source: str | None
    one_stream: bool
    rows: dict[str, int]
    events_ms: tuple[int, int] | None
    date: str
    code: tuple[str, ...]
    versions: dict[str, str]
    best_twins: dict[str, str]
    errors: str
    command: str


class Choice(Frozen):
    """The setting that an arm of a student is judged with, and the mean NE of all that were tried."""

    student: str
    arm: str
    trial: int
    tuned: dict[str, Any]
    ne_of_trials: tuple[float | None, ...]
    at_the_edge: tuple[str, ...]
    model: dict[str, Any]


class ReplayReport(Frozen):
    """`data`: what the checks of the rows found, as `pipelines.data.profile` writes it."""

    about: About
    spec: Spec
    cells: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...] = ()
    chosen: tuple[Choice, ...] = ()
    notes: tuple[str, ...] = ()
    data: dict[str, Any] | None = None

    @cached_property
    def table(self) -> Cells:
        return Cells(self.cells)

    def with_cells(self, more: Sequence[Cell]) -> ReplayReport:
        return ReplayReport(**dict(self) | {"cells": (*self.cells, *more)})

    @property
    def tuned(self) -> bool:
        """Settings were chosen, or the best of several baselines."""
        return max(len(arm.trials) for arm in self.spec.arms.values()) > 1 or len(self.spec.baselines) > 1


def report(
    workspace: Workspace,
    choices: Choices,
    best_twins: Mapping[str, str],
    judged: Sequence[JudgedStudent],
    parts: Sequence[Path],
    *,
    data: dict[str, Any] | None = None,
    command: str = "",
) -> ReplayReport:
    """Put together what was judged. `best_twins`: of each student, the baseline that is best where settings are
    chosen."""
    made = [_made(path) for path in parts]
    table = [cell for one in judged for cell in one.cells]
    table += [*means(judged), *_lost(workspace, judged), *_costs(workspace, choices, judged, table)]
    table += [*_training_flops(workspace, choices, judged), *_labels(workspace)]
    table += _discoveries(table)
    return ReplayReport(
        about=_about(workspace, best_twins, made, command),
        spec=workspace.spec,
        cells=tuple(table),
        verdicts=tuple(verdicts(Cells(table), workspace.spec, *_teaching(choices, best_twins))),
        chosen=tuple(_choices(choices)),
        notes=tuple(_notes(workspace, choices, sorted({code for _, code in made}))),
        data=data,
    )


# --- cells of several students or conditions -------------------------------------------------------------------------


def means(judged: Sequence[JudgedStudent]) -> Iterator[Cell]:
    """Means over students, by condition, task and arm; undefined where one student's is."""
    for key, by_student in _by_student(judged).items():
        for estimated in _mean_estimates(by_student).values():
            yield from cells(key, estimated.measures())


def _by_student(judged: Sequence[JudgedStudent]) -> dict[Key, list[tuple[JudgedStudent, dict[str, Estimated]]]]:
    by_key: dict[Key, list[tuple[JudgedStudent, dict[str, Estimated]]]] = {}
    for one in judged:
        for arm, estimates in one.estimates.items():
            by_key.setdefault(Key(one.condition, MEAN, one.task, arm), []).append((one, estimates))
    return by_key


def _mean_estimates(by_student: Sequence[tuple[JudgedStudent, dict[str, Estimated]]]) -> dict[str, Estimated]:
    """The mean over students of every estimate that one of them has."""
    averaged = {}
    ids = [one.clusters for one, _ in by_student]
    for metric in dict.fromkeys(metric for _, estimates in by_student for metric in estimates):
        each = [estimates.get(metric) for _, estimates in by_student]
        defined = [e.estimate for e in each if e is not None and e.estimate is not None]
        if len(defined) < len(each):
            continue
        lacking = next((_of(e.lacking, one.student) for e, (one, _) in zip(each, by_student, strict=True)
                        if e is not None and e.lacking is not None), None)  # fmt: skip
        n = sum(e.n for e in each if e is not None)
        averaged[metric] = Estimated(metric, mean_over_students(defined, ids), n, lacking)
    return averaged


def _of(lacking: str, student: str) -> str:
    """
    >>> _of("positives (9)", "shop")
    'positives of shop (9)'
    """
    what, _, number = lacking.rpartition(" (")
    return f"{what} of {student} ({number}"


def _lost(workspace: Workspace, judged: Sequence[JudgedStudent]) -> Iterator[Cell]:
    """`lost/fresh`, `lost/as mature`: the share of a control condition's gain that is not there."""
    estimates = {
        Key(one.condition, one.student, one.task, arm): e for one in judged for arm, e in one.estimates.items()
    }
    estimates |= {key: _mean_estimates(by_student) for key, by_student in _by_student(judged).items()}
    for key, own in estimates.items():
        for kind, control in workspace.spec.controls_of(key.condition).items():
            gain, full = own.get("gain"), estimates[key._replace(condition=control)].get("gain")
            if gain is None or full is None or gain.lacking is not None:
                continue
            share = gain.estimate and full.estimate and estimate_ratio(gain.estimate, full.estimate)
            yield from cells(key, Estimated(f"lost/{kind}", share and remainder(share), gain.n).measures())


def _costs(
    workspace: Workspace,
    choices: Choices,
    judged: Sequence[JudgedStudent],
    table: Sequence[Cell],
) -> Iterator[Cell]:
    """`cost_ratio` of training to the first baseline's; what serving costs; a teacher's `flops`."""
    spec, seed = workspace.spec, workspace.spec.seeds[0]
    seconds = {cell.key: cell.value for cell in table if cell.metric == "seconds_per_row" and cell.value}
    for key, value in seconds.items():
        if base := seconds.get(key._replace(arm=spec.baselines[0])):
            assert value is not None
            yield from cells(key, [Measure("cost_ratio", value / base)])
    served = {
        (student, arm): serving_of(workspace.of(seed, arm), chosen.setting.student)
        for (student, arm), chosen in choices.items()
    }
    for one in judged:
        if one.condition == spec.tuned_under:
            for arm in spec.arms:
                costs = served[one.student, arm]
                measures = [Measure("serving/flops", costs.flops), Measure("serving/parameters", costs.parameters)]
                yield from cells(Key(one.condition, one.student, one.task, arm), measures)
        snapshots = spec.conditions[one.condition].logit_source
        if snapshots is not None and snapshots.stored is None:
            features, model = workspace.teacher(snapshots.teacher)
            flops = flops_per_example(model, features, len(workspace.config.tasks))
            yield from cells(Key(one.condition, one.student, one.task, "(teacher)"), [Measure("flops", flops)])


def _teaching(choices: Choices, best_twins: Mapping[str, str]) -> tuple[set[str], str]:
    """Arms that distil, and the labels that the best twins learn."""
    distil = {arm for (_, arm), chosen in choices.items() if chosen.setting.student.model.arm.distils}
    all_rows = all(choices[name, twin].setting.student.label_rows == "all" for name, twin in best_twins.items())
    return distil, "Labels of all verticals" if all_rows else "Labels"


def _training_flops(workspace: Workspace, choices: Choices, judged: Sequence[JudgedStudent]) -> Iterator[Cell]:
    """`training_flops` and `training_flops_with_teacher` of every student and of the mean over them."""
    by_student: dict[Key, list[TrainingFlops]] = {}
    for one in judged:
        condition = workspace.spec.conditions[one.condition]
        for arm in workspace.spec.arms:
            flops = training_flops(workspace, condition, choices[one.student, arm].setting.student, arm)
            by_student[Key(one.condition, one.student, one.task, arm)] = [flops]
            by_student.setdefault(Key(one.condition, MEAN, one.task, arm), []).append(flops)
        teacher = [Measure("training_flops", teacher_flops(workspace, condition))]
        yield from cells(Key(one.condition, one.student, one.task, "(teacher)"), teacher)
    for key, each in by_student.items():
        whole = [of.with_teacher for of in each if of.with_teacher is not None]
        measures = [Measure("training_flops", sum(of.own for of in each) / len(each))]
        if len(whole) == len(each):
            measures.append(Measure("training_flops_with_teacher", sum(whole) / len(each)))
        yield from cells(key, measures)


def _labels(workspace: Workspace) -> Iterator[Cell]:
    """Labels that students of the first seed learn of those that were logged, where it is not all of them."""
    seed = workspace.spec.seeds[0]
    for name, condition in workspace.spec.conditions.items():
        for task, learned in labels_under(workspace, seed, condition).items():
            logged = workspace.rows(seed).table[f"label_{task}"]
            (positives, labels), (learned_positives, still) = (
                (pc.sum(of).as_py() or 0, pc.count(of).as_py()) for of in (logged, learned)
            )
            measures = {"positives": positives, "learned": learned_positives, "labels": labels, "gone": labels - still}
            key = Key(name, "", task, "")
            yield from cells(key, [Measure(f"labels/{what}", count) for what, count in measures.items()])


def _discoveries(table: Sequence[Cell]) -> list[Cell]:
    """`…/found`, 1 or 0, beside every `…/log_e`: a discovery of e-BH among all of them."""
    tested = [cell for cell in table if cell.metric.endswith("/log_e")]
    discoveries = e_bh(np.array([cell.value or 0.0 for cell in tested]), FALSE_SHARE)
    return [
        Cell(*cell.key, cell.metric.removesuffix("log_e") + "found", float(one))
        for cell, one in zip(tested, discoveries, strict=True)
    ]


class ServingCost(NamedTuple):
    """Cost of a served student: `parameters` including tables; `flops` of a forward pass per row."""

    parameters: int
    flops: int


def serving_of(config: Config, student: StudentSettings) -> ServingCost:
    """Serving cost of a student with these settings."""
    tasks, features = config.student_tasks(student), config.student_features(student).without_teacher()
    cfg = student.model
    served = ServedStudent(cfg.trunk, cfg.width, features, tasks, wide=cfg.wide, embeddings=cfg.embeddings)
    return ServingCost(served.parameter_count, flops_per_example(cfg, features, len(tasks)))


# --- what was run ----------------------------------------------------------------------------------------------------


def _about(workspace: Workspace, best_twins: Mapping[str, str], made: Sequence[tuple[str, str]], command: str) -> About:
    """`made`: when each part was, and by which code."""
    spec, source = workspace.spec, workspace.config.source
    return About(
        config=workspace.config.name,
        config_hash=workspace.config.hash,
        source="lake" if workspace.run_dir else source and source.kind,
        one_stream=workspace.one_stream,
        rows={str(seed): workspace.rows(seed).table.num_rows for seed in spec.all_seeds},
        events_ms=_event_range(workspace),
        date=max(at for at, _ in made)[:10],
        code=tuple(sorted({code for _, code in made})),
        versions=_versions(),
        best_twins=dict(best_twins),
        errors=_errors(workspace),
        command=command,
    )


def _choices(choices: Choices) -> Iterator[Choice]:
    for (student, arm), chosen in choices.items():
        setting = chosen.setting
        yield Choice(
            student=student,
            arm=arm,
            trial=setting.trial,
            tuned=setting.tuned,
            ne_of_trials=tuple(chosen.ne),
            at_the_edge=tuple(chosen.edges),
            model=setting.student.model.model_dump(mode="json"),
        )


def _event_range(workspace: Workspace) -> tuple[int, int] | None:
    """First and last event time, over all seeds' streams."""
    ends: list[int] = []
    for seed in workspace.spec.seeds:
        ends += (x for x in pc.min_max(workspace.rows(seed).table["event_time_ms"]).as_py().values() if x is not None)
    return (min(ends), max(ends)) if ends else None


def _made(path: Path) -> tuple[str, str]:
    part = load_part(path)
    assert part is not None
    return str(part["made_at"]), str(part["made_with"])


def _errors(workspace: Workspace) -> str:
    """Method of the standard errors, in words."""
    pieces = f"clusters of {' and of '.join(workspace.spec.clustered_by) or 'consecutive rows'}"
    if len(workspace.spec.seeds) == 1:
        return f"{pieces} of one seed: another seed's result is not covered"
    if workspace.one_stream:
        return f"{pieces} in the mean over seeds, and seeds as far as they differ by more than that; t"
    return "t over seeds, each with a stream of its own"


def _notes(workspace: Workspace, choices: Choices, codes: Sequence[str]) -> Iterator[str]:
    """Notes that a reader needs before trusting a figure."""
    spec = workspace.spec
    if spec.unequal:
        efforts = ", ".join(f"{arm} {len(made.trials)}" for arm, made in spec.arms.items())
        yield f"UNEQUAL EFFORT: the arms tried different numbers of settings ({efforts}); more is an advantage"
    yield from _leaks(workspace)
    yield from _edges(workspace, choices)
    if len(codes) > 1:
        yield (
            f"parts were made by {len(codes)} versions of the model code; delete {workspace.folder} to compute all "
            "again"
        )
    if len(spec.seeds) == 1:
        yield "one seed: its randomness is in every figure and in no interval"
    elif not workspace.one_stream and len(spec.seeds) < 5:
        yield f"{len(spec.seeds)} seeds give wide intervals; 5 or more are usual"


def _leaks(workspace: Workspace) -> Iterator[str]:
    """Marks of logit sets whose teacher had learned the rows, and of students that learned from a set."""
    named = [condition.logit_set for condition in workspace.spec.conditions.values()]
    named += [student.logits for student in workspace.config.students]
    for name in dict.fromkeys(named):
        if name is not None and workspace.run_dir is not None:
            leakage = LogitSet(workspace.run_dir.side_tables, name).description.leakage
            yield from [leakage] if leakage else []
    for student in workspace.config.students:
        as_logged = [name for name, asked in workspace.spec.conditions.items() if asked.logit_source == LogitSource()]
        if student.logits is not None and as_logged:
            yield (
                f"`{student.name}` learned from logit set `{student.logits}`; under `{as_logged[0]}` it learns the "
                f"logits that were logged. As it was: --condition 'as read: logit_set={student.logits}'"
            )


def _edges(workspace: Workspace, choices: Choices) -> Iterator[str]:
    """Notes on grids that were extended, and on choices that still are at an edge."""
    extended: dict[str, list[str]] = {}
    edges: dict[str, list[str]] = {}
    for (student, arm), chosen in choices.items():
        if more := len(chosen.ne) - len(workspace.spec.arms[arm].trials):
            extended.setdefault(arm, []).append(f"{student} by {more}")
        if chosen.edges:
            edges.setdefault(arm, []).append(f"{student}: {', '.join(chosen.edges)}")
    if extended:
        arms = "; ".join(f"`{arm}` {', '.join(students)}" for arm, students in extended.items())
        yield (
            "settings were tried beyond the edges of grids, by one rule for all arms, at most "
            f"{EXTENSIONS} times: {arms}"
        )
    for arm, where in edges.items():
        yield f"arm `{arm}` chose the edge of its grid ({'; '.join(where)}): a wider grid may do better"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("exfm", *PACKAGES):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
