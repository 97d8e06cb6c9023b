"""Policy value of a replay's arms, which the replay itself does not know of: the worth of their choices among logged
candidates, from logged propensities.

IPS, SNIPS and doubly robust estimates (exfm/metrics/policy.py), by arm and seed, as cells of the replay's table. Rows
of one request are its candidates, those that were not shown included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from exfm.metrics.classification import sigmoid
from exfm.metrics.policy import PolicyValue, best_of_request, policy_value
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.data.profile.codes import codes_of_values
from pipelines.lab.data import places_of
from pipelines.lab.judging.segments import SegmentColumns
from pipelines.lab.judging.settings import Ranking
from pipelines.lab.parts import load_part
from pipelines.lab.replay.settings import students_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.report.cells import Cell, Key, Measure, cells, part


def policy_cells(workspace: Workspace, parts: Mapping[tuple[str, str, str, int], Path]) -> list[Cell]:
    """`choices/SEED/…` of every arm under the first condition; nothing where the spec names no propensities. `parts`:
    student, condition, arm and seed -> the part with the student's logits."""
    spec = workspace.spec
    table: list[Cell] = []
    if spec.ranking is None:
        return table
    for student in students_of(spec, workspace.config):
        for seed in spec.seeds:
            logged = LoggedChoices(workspace, student, seed)
            for t, task in enumerate(workspace.config.student_tasks(student)):
                for arm in spec.arms:
                    stored = load_part(parts[student.name, spec.tuned_under, arm, seed])
                    assert stored is not None
                    measures = logged.measures(task, int(stored["first"]), stored["logits"][:, t])
                    table += cells(Key(spec.tuned_under, student.name, task, arm), measures)
    return table


class LoggedChoices:
    """The candidates that a student scored under one seed."""

    def __init__(self, workspace: Workspace, student: StudentSettings, seed: int) -> None:
        spec, table = workspace.spec, workspace.rows(seed).table
        assert spec.ranking is not None
        self._seed, self._ranking, self._table = seed, spec.ranking, table
        self._places = places_of(table, workspace.of(seed), student)
        columns = SegmentColumns(table, self._places, workspace.config.rows)
        names = [name for name in spec.ranking.model_dump().values() if name is not None]
        self.columns = {name: columns[name].to_numpy(zero_copy_only=False) for name in names}
        self.window = self._places >= spec.judged_from * table.num_rows
        by = spec.clustered_by  # a request is of one value of the first
        self.clusters = codes_of_values(columns[by[0]]) if by else None

    def measures(self, task: str, first: int, life: np.ndarray) -> Iterator[Measure]:
        """Worth of the choices of a student whose logits from its row `first` on are `life`."""
        logits = np.full(len(self._places), np.nan)
        logits[first:] = life
        labels = self._table[f"label_{task}"].take(pa.array(self._places)).combine_chunks()
        worth = choices(logits, labels, self.columns, self._ranking, self.window, self.clusters)
        at, n = f"choices/{self._seed}", worth.requests
        yield Measure(at, None, n=n)
        for name, of in {"logged": worth.logged, "ips": worth.ips, "snips": worth.snips, "dr": worth.dr}.items():
            if of is not None:
                yield Measure(f"{at}/{name}", of.value, of.low, of.high, n)
        yield Measure(f"{at}/effective", worth.effective, n=n)
        yield Measure(f"{at}/agreement", worth.agreement)
        yield Measure(f"{at}/mean_weight", worth.mean_weight)
        if worth.refused:
            yield Measure(f"{at}/refused/{part(worth.refused)}", None)


def choices(
    logits: np.ndarray,
    labels: pa.Array,
    columns: Mapping[str, np.ndarray],
    asked: Ranking,
    window: np.ndarray,
    clusters: np.ndarray | None = None,
) -> PolicyValue:
    """Estimate the value of choosing a model's largest prediction, from logged choices: `logits` and `labels` (n,)
    of all rows of the student, including candidates that were not shown. `clusters` (n,): ids, the same within a
    request; requests of one, as those of a user, are not independent. None: all requests are."""
    labelled = labels.is_valid().to_numpy(zero_copy_only=False)
    chosen = labelled if asked.chosen is None else columns[asked.chosen] > 0
    requests = columns[asked.request]
    y = labels.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    scored = window & np.isfinite(logits)
    left_out = ~scored | (chosen & ~labelled)  # a request is judged whole, with the label of its choice, or not at all
    whole = ~np.isin(requests, requests[left_out])
    z, at = logits[whole], requests[whole]
    return policy_value(
        at,
        columns[asked.propensity][whole],
        chosen[whole],
        y[whole],
        best_of_request(at, z),
        sigmoid(z),
        None if clusters is None else clusters[whole],
    )
