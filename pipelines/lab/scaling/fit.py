"""Scaling laws: a replay of teachers only, each trained once on the same rows, and judged on their second half.

Where several learning rates were tried, a member's own is the one that was best on the first half, for all its tasks
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from exfm.metrics.classification import normalised_entropy
from exfm.metrics.clusters import Clusters
from exfm.parallel.planning.law import ScalingLaw, fit_scaling_law, loss_blocks
from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Frozen
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.judging.comparison import Comparison, JudgedRows, Sample, losses, metrics
from pipelines.lab.parts import load_part
from pipelines.lab.replay.run import Runner
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.store import teacher_part
from pipelines.lab.replay.stream import teacher_logits
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.rows import OPTIMUM
from pipelines.lab.scaling.family import Member
from pipelines.lab.spec.arms import ArmSpec
from pipelines.lab.spec.conditions import Condition, LogitSource, TeacherSpec
from pipelines.report.cells import Cell, Key, Measure, cells, lack
from streaming.schema import SAMPLE_WEIGHT
from streaming.store.files import write_json

CONDITION = "second half"
OPTIMUM_ARM = "(optimum)"
BLOCKS = 60
"""This many blocks of consecutive rows are treated as independent of each other."""


class Law(Frozen):
    """A fitted law; `reason`: why its exponent, or all of it, is not determined. The curve is
    NE = a + b (C / scale)^−α."""

    interaction: str
    task: str
    reason: str | None
    curve: tuple[float, float, float, float] | None


class Scaling(Frozen):
    """Figures of every member under `arm`, and of every interaction's law: `gain per 4x` in % of NE, and `alpha`."""

    name: str
    config_hash: str
    rows: int
    members: tuple[Member, ...]
    cells: tuple[Cell, ...]
    laws: tuple[Law, ...]


class OneStream(Workspace):
    """A workspace whose seeds are the models' alone: all have the rows of the config's own."""

    @property
    def one_stream(self) -> bool:
        return True

    def of(self, seed: int, arm: str | None = None) -> Config:
        return self.config.model_copy(update={"seed": seed})


class FamilyTrial(Frozen):
    """A member with one learning rate, under one seed."""

    member: Member
    rate: float
    seed: int

    @property
    def teacher(self) -> str:
        return f"{self.member.name} at {self.rate:g}"


def fit(
    config: Config,
    folder: Path,
    family: Sequence[Member],
    *,
    rows: int,
    seeds: Sequence[int],
    rates: Sequence[float],
    run_dir: RunDir | None,
    processes: int,
) -> Scaling:
    """Train what is not trained yet, and judge it; the result is in `folder`, too. `rates`: dense learning rates that
    every member tries; empty: the config's."""
    rates = rates or [config.teacher.model.dense_lr]
    trials = [FamilyTrial(member=m, rate=rate, seed=seed) for m in family for seed in seeds for rate in rates]
    models = {t.teacher: t.member.model.model_dump(mode="json") | {"dense_lr": t.rate} for t in trials}
    spec = Spec(
        config="-",
        seeds=tuple(seeds),
        rows=rows,
        arms={"none": ArmSpec()},
        conditions={CONDITION: Condition(teacher=trials[0].teacher)},
        teachers={name: TeacherSpec(model=model) for name, model in models.items()},
        cluster=None,
    )
    workspace = OneStream(spec, config, folder, run_dir)
    runner = Runner(workspace, processes)
    runner.teach()
    judged = [JudgedTask(workspace, task) for task in config.tasks]
    best = best_rates(trials, judged)
    table = [cell for task in judged for cell in task.cells(best, seeds)]
    laws = [(i, task, task.law(best, i)) for i in dict.fromkeys(m.interaction for m in family) for task in judged]
    table += [cell for interaction, task, law in laws for cell in _law_cells(interaction, task.name, law)]
    result = Scaling(
        name=config.name,
        config_hash=config.hash,
        rows=workspace.rows(seeds[0]).num_rows,
        members=tuple(family),
        cells=tuple(table),
        laws=tuple(Law(interaction=i, task=task.name, reason=law.reason, curve=_curve(law)) for i, task, law in laws),
    )
    write_json(folder / "scale.json", result.model_dump(mode="json"))
    return result


class JudgedTask:
    """The rows of one task that are judged, and the logits of every trial on them."""

    def __init__(self, workspace: OneStream, name: str) -> None:
        self._workspace, self.name = workspace, name
        self._at = workspace.config.tasks.index(name)
        table = workspace.rows(workspace.spec.seeds[0]).table
        column = table[f"label_{name}"]
        labelled = np.flatnonzero(column.is_valid().to_numpy())
        weighted = SAMPLE_WEIGHT in table.schema.names
        weights = table[SAMPLE_WEIGHT].to_numpy()[labelled] if weighted else np.ones(len(labelled))
        self._second = labelled >= table.num_rows // 2
        self._places = labelled
        blocks = np.arange(len(labelled)) // self._block_rows
        optimum = OPTIMUM + name
        self.rows = JudgedRows(
            at=np.arange(len(labelled)),
            places=labelled,
            labels=column.fill_null(0).to_numpy()[labelled].astype(np.float64),
            weights=weights,
            clusters=Clusters.of(blocks),
            logits={OPTIMUM: table[optimum].to_numpy()[labelled]} if optimum in table.schema.names else {},
            student_rows=len(labelled),
            stream_rows=table.num_rows,
            left_out=0,
        )

    @property
    def _block_rows(self) -> int:
        return max(1, -(-int(self._second.sum()) // BLOCKS))

    def logits(self, trial: FamilyTrial) -> np.ndarray:
        source = LogitSource(trial.teacher)
        return teacher_logits(self._workspace, trial.seed, source)[self._places, self._at].astype(np.float64)

    def first_half_ne(self, trial: FamilyTrial) -> float:
        """NE of the rows before the second half that the trial scored; infinite where it is not defined."""
        z = self.logits(trial)
        first = ~self._second & np.isfinite(z)
        ne = normalised_entropy(z[first], self.rows.labels[first], self.rows.weights[first]) if first.any() else None
        return np.inf if ne is None or not np.isfinite(ne) else ne

    def cells(self, best: Mapping[tuple[str, int], FamilyTrial], seeds: Sequence[int]) -> Iterator[Cell]:
        """Figures of every member: means over seeds, and gains over the smallest and over the Wukong of its FLOPs."""
        sample = self.sample(len(seeds))
        family = {name: best[name, seeds[0]].member for name, _ in best}
        smallest = min(member.dial for member in family.values())
        for name, member in family.items():
            trials = [best[name, seed] for seed in seeds]
            z = [self.logits(trial) for trial in trials]
            measures = [*metrics(z, sample, grouped=False), *self._about(trials)]
            measures += [lack("rows", sample.lacking)] if sample.lacking is not None else []
            others = {"smallest": f"{member.interaction}-{smallest}", "wukong": f"wukong-{member.dial}"}
            for key, other in others.items():
                if other == name or (other, seeds[0]) not in best:
                    continue
                base = losses([self.logits(best[other, seed]) for seed in seeds], sample.rows)
                gain = Comparison(base, losses(z, sample.rows), sample).gain()
                measures += sample.estimated(f"gain/over/{key}", gain).measures()
            yield from cells(Key(CONDITION, "", self.name, name), measures)
        if np.isfinite(optimum := self.rows.logits.get(OPTIMUM, np.empty(0))).all() and len(optimum):
            measures = list(metrics([optimum], self.sample(1), grouped=False))
            yield from cells(Key(CONDITION, "", self.name, OPTIMUM_ARM), measures)

    def sample(self, seeds: int) -> Sample:
        """The second half, for so many seeds."""
        return Sample([self.rows] * seeds, [self._second] * seeds, clustered=True)

    def _about(self, trials: Sequence[FamilyTrial]) -> Iterator[Measure]:
        yield Measure("rows", int(self._second.sum()))
        yield Measure("positives", int(self.rows.labels[self._second].sum()))
        yield Measure("flops", trials[0].member.flops)
        for trial in trials:
            part = load_part(teacher_part(self._workspace, trial.seed, LogitSource(trial.teacher)))
            assert part is not None
            yield Measure(f"dense_lr/{trial.seed}", trial.rate)
            yield Measure(f"rows_left_out/{trial.seed}", int(part["left_out"]))
            yield Measure(f"rows_per_s/{trial.seed}", len(part["logits"]) / float(part["seconds"]))

    def law(self, best: Mapping[tuple[str, int], FamilyTrial], interaction: str) -> ScalingLaw:
        """NE against FLOPs over the members of an interaction, under every seed."""
        own = [trial for trial in best.values() if trial.member.interaction == interaction]
        second = self._second
        if lacking := self.sample(1).lacking:
            return ScalingLaw(None, None, f"too few {lacking} to tell")
        logits = [(trial.member.flops, self.logits(trial)[second]) for trial in own]
        finite = [(flops, z) for flops, z in logits if np.isfinite(z).all()]
        if len(finite) < len(logits):
            return ScalingLaw(
                None,
                None,
                f"{len(logits) - len(finite)} of {len(logits)} passes gave logits that are not finite; a lower rate "
                "would help",
            )
        stacked = np.stack([z for _, z in finite])
        blocks = loss_blocks(stacked, self.rows.labels[second], self._block_rows, self.rows.weights[second])
        return fit_scaling_law([flops for flops, _ in finite], blocks)


def best_rates(trials: Sequence[FamilyTrial], judged: Sequence[JudgedTask]) -> dict[tuple[str, int], FamilyTrial]:
    """Select, for each member and seed, the trial whose learning rate was best on the first half."""
    ne = {trial.teacher + str(trial.seed): sum(task.first_half_ne(trial) for task in judged) for trial in trials}
    best: dict[tuple[str, int], FamilyTrial] = {}
    for trial in trials:
        key = trial.member.name, trial.seed
        if key not in best or ne[trial.teacher + str(trial.seed)] < ne[best[key].teacher + str(trial.seed)]:
            best[key] = trial
    return best


def _law_cells(interaction: str, task: str, law: ScalingLaw) -> list[Cell]:
    measures = []
    if law.gain_per_4x is not None:
        measures.append(Measure("gain per 4x", *law.gain_per_4x))
    if law.power is not None:
        measures.append(Measure("alpha", *law.power.alpha))
    return cells(Key(CONDITION, "", task, interaction), measures)


def _curve(law: ScalingLaw) -> tuple[float, float, float, float] | None:
    power = law.power
    return None if power is None else (power.a, power.b, power.scale, power.alpha.value)
