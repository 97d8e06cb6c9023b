"""What the passes of a family show, as one JSON value: figures of every member, what size buys, and gains
over others, in % of their NE (above 0 is better).

Everything is judged on the second half of the rows; where several learning rates were tried, a member's own is the one
that was best on the first half, for all its tasks together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from exfm.metrics.classification import metrics_of, normalised_entropy
from exfm.metrics.limits import too_few
from exfm.metrics.paired import consecutive_blocks, paired_gain
from exfm.parallel.planning.cost import TRAINING_OVER_FORWARD
from exfm.parallel.planning.law import ScalingLaw, fit_scaling_law, loss_blocks
from pipelines.core.config.settings import Config
from pipelines.lab.rows import OPTIMUM, Rows
from pipelines.lab.scaling.family import Member, Passed, Trial
from streaming.schema import SAMPLE_WEIGHT

BLOCKS = 60
"""This many blocks of consecutive rows are treated as independent of each other."""

FIGURES = ("ne", "auc", "log_loss", "calibration")


def sizes(found: Sequence[Member]) -> list[dict[str, Any]]:
    """What the members are and cost; `relative_flops` to the first of them."""
    return [
        {
            "name": member.name,
            "interaction": member.interaction,
            "dial": member.dial,
            "flops_per_example": member.flops,
            "training_flops_per_example": TRAINING_OVER_FORWARD * member.flops,
            "relative_flops": member.flops / found[0].flops,
            "parameters": {"dense": member.dense_parameters, "tables": member.table_parameters},
            "model": member.model.model_dump(mode="json"),
        }
        for member in found
    ]


class JudgedTask:
    """The rows of one task that are judged, and all passes on them."""

    def __init__(self, rows: Rows, task: str, at: int) -> None:
        column = rows.table[f"label_{task}"]
        known = np.flatnonzero(column.is_valid().to_numpy())
        half = rows.table.num_rows // 2
        self.task, self._at = task, at
        self.first, self.rows = known[known < half], known[known >= half]
        self._labels = column.fill_null(0).to_numpy()
        self.labels = self._labels[self.rows].astype(np.float64)
        weighted = SAMPLE_WEIGHT in rows.table.schema.names
        self._weights = rows.table[SAMPLE_WEIGHT].to_numpy() if weighted else np.ones(rows.table.num_rows)
        self.weights = self._weights[self.rows]
        self.block_rows = max(1, -(-len(self.rows) // BLOCKS))
        self.optimum: np.ndarray | None = None
        if OPTIMUM + task in rows.table.schema.names:
            optimum = rows.table[OPTIMUM + task].to_numpy()[self.rows]
            self.optimum = optimum if np.isfinite(optimum).all() else None

    @property
    def usable(self) -> bool:
        """Whether both classes are in both halves."""
        return all(len(np.unique(self._labels[rows])) == 2 for rows in (self.first, self.rows))

    def logits(self, passed: Passed) -> np.ndarray:
        return passed.logits[self.rows, self._at]

    def first_half_ne(self, passed: Passed) -> float:
        first = self.first
        ne = normalised_entropy(passed.logits[first, self._at], self._labels[first], self._weights[first])
        return np.inf if ne is None or not np.isfinite(ne) else ne

    def figures(self, logits: np.ndarray) -> dict[str, float | None]:
        if not np.isfinite(logits).all():
            return dict.fromkeys(FIGURES)
        found = metrics_of(logits, self.labels, self.weights)._asdict()
        return {name: found[name] for name in FIGURES}

    def gain(self, logits: np.ndarray, other: np.ndarray) -> dict[str, Any] | None:
        if not (np.isfinite(logits).all() and np.isfinite(other).all()):
            return None
        clusters = consecutive_blocks(len(self.labels), self.block_rows)
        return paired_gain(logits, other, self.labels, clusters, self.weights)._asdict()


def report(config: Config, rows: Rows, passes: Mapping[Trial, Passed]) -> dict[str, Any]:
    """The report of all passes, judged task by task."""
    every = [JudgedTask(rows, task, at) for at, task in enumerate(config.tasks)]
    judged = [task for task in every if task.usable]
    chosen = best_rates(passes, judged)
    smallest = min(trial.member.dial for trial in chosen)
    entries = []
    costs = sizes([trial.member for trial in chosen])
    for (trial, passed), cost in zip(chosen.items(), costs, strict=True):
        entry = cost | {"seed": trial.seed, "rows_per_s": len(passed.logits) / passed.seconds}
        entry |= {"dense_lr": trial.member.model.dense_lr, "rows_left_out": passed.left_out, "tasks": {}}
        for task in judged:
            mine, figures = task.logits(passed), dict[str, Any](task.figures(task.logits(passed)))
            for key, interaction, dial in (
                ("gain_over_smallest", trial.member.interaction, smallest),
                ("gain_over_wukong", "wukong", trial.member.dial),
            ):
                other = _one(chosen, interaction, dial, trial.seed)
                figures[key] = None if other is None or other is passed else task.gain(mine, task.logits(other))
            entry["tasks"][task.task] = figures
        entries.append(entry)
    return {
        "run": {"name": config.name, "config_hash": config.hash, "rows": rows.table.num_rows, "rows_name": rows.name},
        "judged": {
            task.task: {
                "on": "second half of the rows",
                "rows": len(task.rows),
                "positives": (positives := int(task.labels.sum())),
                "too_few": too_few(positives, len(task.rows) - positives),
                "blocks": -(-len(task.rows) // task.block_rows),
                "optimum": None if task.optimum is None else task.figures(task.optimum),
            }
            for task in judged
        },
        "not_judged": [task.task for task in every if not task.usable],
        "members": entries,
        "laws": {
            interaction: {task.task: _law(chosen, interaction, task) for task in judged}
            for interaction in dict.fromkeys(trial.member.interaction for trial in chosen)
        },
    }


def best_rates(passes: Mapping[Trial, Passed], judged: Sequence[JudgedTask]) -> dict[Trial, Passed]:
    """For each member and seed, the pass whose learning rate was best on the first half."""
    best: dict[tuple[str, int], tuple[float, Trial]] = {}
    for trial, passed in passes.items():
        ne = sum(task.first_half_ne(passed) for task in judged)
        key = (trial.member.name, trial.seed)
        if key not in best or ne < best[key][0]:
            best[key] = (ne, trial)
    return {trial: passes[trial] for _, trial in best.values()}


def _one(passes: Mapping[Trial, Passed], interaction: str, dial: int, seed: int) -> Passed | None:
    for trial, passed in passes.items():
        if (trial.member.interaction, trial.member.dial, trial.seed) == (interaction, dial, seed):
            return passed
    return None


def _law(passes: Mapping[Trial, Passed], interaction: str, task: JudgedTask) -> dict[str, Any]:
    mine = [(t.member.flops, task.logits(p)) for t, p in passes.items() if t.member.interaction == interaction]
    positives = int(task.labels.sum())
    if lacking := too_few(positives, len(task.rows) - positives):
        return _plain(ScalingLaw(None, None, f"too few {lacking} to tell"))
    good = [(flops, logits) for flops, logits in mine if np.isfinite(logits).all()]
    if len(good) < len(mine):
        said = f"{len(mine) - len(good)} of {len(mine)} passes gave logits that are not finite; a lower rate would help"
        return _plain(ScalingLaw(None, None, said))
    blocks = loss_blocks(np.stack([logits for _, logits in good]), task.labels, task.block_rows, task.weights)
    return _plain(fit_scaling_law([flops for flops, _ in good], blocks))


def _plain(law: ScalingLaw) -> dict[str, Any]:
    power = None if law.power is None else law.power._asdict() | {"alpha": law.power.alpha._asdict()}
    gain = None if law.gain_per_4x is None else law.gain_per_4x._asdict()
    return {"gain_per_4x_percent": gain, "power_law": power, "not_determined": law.reason}
