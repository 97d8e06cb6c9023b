"""Row by row: the snapshot that scored a row for a task had not learned that row's label for that task.

Twice over. By what is recorded: the position in the snapshot's manifest lies before the row. And by what is known
without trusting any record: every impression has an id of its own as a feature, with an embedding row that no other
impression looks up, and every snapshot is kept. Scoring the row's batch again with the snapshot said to have scored it
gives the logged logit to the bit, so it was that one; and in it the impression's own embedding row still has its
initial value, which it loses in the snapshot that has learned it.

A conversion settles in a row of its own, later. Its impression's click label may be learned by then, and has moved the
embedding row once; the conversion's has not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exfm.features.batch import BatchBuilder
from exfm.models.scorer import TeacherScorer
from exfm.snapshots.checkpoint import checkpoint_names, load_checkpoint
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from tests.support.pipelines.small_runs import Finished, small, to_the_end
from tests.support.pipelines.teacher_snapshots import untrained
from tests.support.pipelines.topics import by_hand, fill

pytestmark = pytest.mark.broker

IMPRESSIONS, FIRST = 2500, 900
SCORE_ROWS = 100
OWN = "own_id"
PACES: dict[str, dict[str, Any]] = {
    "lockstep": {"pace__block_rows": 256},
    "free": {
        "pace__mode": "free",
        "pace__block_rows": 200,
        "pace__max_rows_ahead": 500,
        "teacher__publish_every_rows": 300,
    },
}


def with_own_ids(servers: str, **changes: Any) -> Config:
    """`small`, and a column that numbers the impressions; a table with one row for each number."""
    base = small(servers).model_dump(mode="json")
    columns = [*base["rows"]["columns"], {"name": OWN, "minimum": 0, "maximum": IMPRESSIONS - 1}]
    sparse = [*base["features"]["sparse"], {"name": OWN, "rows": IMPRESSIONS, "transform": "index"}]
    return small(
        servers,
        source=None,
        rows__columns=columns,
        features__sparse=sparse,
        teacher__only=["interest_0", OWN],
        teacher__batch_rows=64,
        teacher__keep_snapshots=10_000,
        augmentation__score_rows=SCORE_ROWS,
        students=[],
        **changes,
    )


def run_through(config: Config, root: Path) -> Finished:
    """Run until there is a snapshot, however slow the teacher is, then bring the rest and run to the end."""
    shown, feedback = by_hand(config, IMPRESSIONS)
    shown = [row | {OWN: number} for number, row in enumerate(shown)]
    half_ms, run_dir = shown[FIRST]["event_time_ms"], RunDir(root)
    fill(config, shown[:FIRST], [row for row in feedback if row["event_time_ms"] < half_ms])

    def stop_at_the_first(status: RunStatus) -> None:
        if status.state is RunState.RUNNING and checkpoint_names(run_dir.snapshots):
            os.kill(os.getpid(), signal.SIGTERM)

    status, _ = run(config, run_dir, local=True, watch=stop_at_the_first)
    assert status.state is RunState.STOPPED, status.reason
    fill(config, shown[FIRST:], [row for row in feedback if row["event_time_ms"] >= half_ms])
    return to_the_end(config, root)


class Scored(NamedTuple):
    """What a run scored, every snapshot it could have scored with, by version, and the initial weights as version 0."""

    config: Config
    lake: pa.Table
    positions: dict[int, int]  # the last lake_seq learned, by the manifest
    weights: dict[int, dict[str, Any]]

    def own_row(self, version: int) -> np.ndarray:
        """The embedding rows of all impressions, (N, width)."""
        return self.weights[version][f"table/{OWN}/weight"].numpy()


@pytest.fixture(scope="module", params=PACES)
def scored(request, broker, tmp_path_factory) -> Scored:
    config = with_own_ids(broker.bootstrap_servers, **PACES[request.param])
    return look_at(run_through(config, tmp_path_factory.mktemp("scored") / "run"))


def look_at(finished: Finished) -> Scored:
    root: Path = finished.run_dir.snapshots
    stored = {int(name[1:]): load_checkpoint(root / name) for name in checkpoint_names(root)}
    return Scored(
        finished.config,
        finished.lake,
        {version: snapshot.meta["lake_seq"] for version, snapshot in stored.items()},
        {version: snapshot.tensors for version, snapshot in stored.items()} | {0: untrained(finished.config)},
    )


def settling_seq(lake: pa.Table, task: str) -> dict[int, int]:
    """lake_seq of the row that settles the task, by impression's number."""
    rows = lake.filter(lake[f"label_{task}"].is_valid())
    return dict(zip(rows[OWN].to_pylist(), rows["lake_seq"].to_pylist(), strict=True))


def too_late_by_record(scored: Scored, task: str) -> list[int]:
    """Rows with a logit for `task` from a snapshot whose manifest says that it has learned their label for it."""
    settled = settling_seq(scored.lake, task)
    rows = scored.lake.filter(scored.lake[f"teacher_logit_{task}"].is_valid())
    return [
        seq
        for seq, own, version in zip(*(rows[n].to_pylist() for n in ("lake_seq", OWN, "teacher_version")), strict=True)
        if scored.positions[version] >= settled.get(own, seq + 1)
    ]


def scored_otherwise(scored: Scored) -> list[int]:
    """Rows whose logged logits are not, to the bit, those of their scoring batch under the snapshot recorded."""
    config, lake = scored.config, scored.lake
    build = BatchBuilder(config.features, config.tasks)
    scorer = TeacherScorer(config.teacher.model, config.features, config.tasks)
    found: list[int] = []
    blocks = lake["block"].to_numpy()
    for block in np.unique(blocks):
        rows = lake.filter(pc.equal(lake["block"], block))
        (version,) = set(rows["teacher_version"].to_pylist())
        if version is None:
            continue
        scorer.load(scored.weights[version])
        for start in range(0, rows.num_rows, SCORE_ROWS):
            part = rows.slice(start, SCORE_ROWS)
            logits = scorer.score(build(part))
            for index, task in enumerate(config.tasks):
                logged = part[f"teacher_logit_{task}"]
                known = logged.is_valid().to_numpy()
                same = logged.fill_null(0).to_numpy().view(np.int32) == logits[:, index].copy().view(np.int32)
                found += part["lake_seq"].to_numpy()[known & ~same].tolist()
    return found


def moves(scored: Scored) -> np.ndarray:
    """How often each impression's own embedding row has changed up to each version, (versions, N); 0 at the first."""
    versions = sorted(scored.weights)
    rows = np.stack([scored.own_row(version) for version in versions])
    return np.concatenate([np.zeros((1, IMPRESSIONS), int), (np.diff(rows, axis=0) != 0).any(axis=2).cumsum(axis=0)])


def too_late_by_weights(scored: Scored) -> list[int]:
    """Rows whose impression's own embedding row had moved, in the snapshot recorded, by what the row settles."""
    place = {version: n for n, version in enumerate(sorted(scored.weights))}
    moved, found = moves(scored), []
    names = ("lake_seq", "settlement", OWN, "teacher_version", "teacher_logit_ctr", "teacher_logit_cvr")
    for seq, settlement, own, version, *logits in zip(*(scored.lake[n].to_pylist() for n in names), strict=True):
        if logits[settlement == "cvr"] is not None:
            allowed = 1 if settlement == "cvr" else 0  # its click may have been learned before
            if moved[place[version], own] > allowed:
                found.append(seq)
    return found


def test_every_row_was_scored_by_a_snapshot_that_stood_before_it(scored):
    lake = scored.lake
    for task, label in (("ctr", "label_ctr"), ("cvr", "label_cvr")):
        settled = lake.filter(lake[label].is_valid())
        logged = settled[f"teacher_logit_{task}"].is_valid().to_numpy()
        assert logged.sum() > (0.6 * IMPRESSIONS if task == "ctr" else 100)
        assert too_late_by_record(scored, task) == []


def test_the_logged_logits_are_those_of_the_recorded_snapshot_to_the_bit(scored):
    assert len(set(scored.lake["teacher_version"].to_pylist())) > 3
    assert scored_otherwise(scored) == []


def test_in_it_the_rows_own_embedding_still_has_its_initial_value_and_loses_it_once_learned(scored):
    assert too_late_by_weights(scored) == []
    # The sight is keen: learning a row does move its embedding. (Not while the heads are still zero, in the first
    # batches, and not where every ReLU above it is shut.)
    at_the_end = moves(scored)[-1]
    lake = scored.lake
    converted = lake.filter(pc.equal(lake["settlement"], "cvr"))[OWN].to_numpy()
    assert (at_the_end > 0).mean() > 0.9
    assert (at_the_end[converted] == 2).mean() > 0.7
    assert at_the_end.max() <= 2


def rescored(scored: Scored, version: int) -> Scored:
    """As if the last block but a few had been scored by `version`."""
    config, lake = scored.config, scored.lake
    last = lake["block"].to_numpy().max() - 3
    here = pc.equal(lake["block"], last).combine_chunks()
    scorer = TeacherScorer(config.teacher.model, config.features, config.tasks)
    scorer.load(scored.weights[version])
    rows = lake.filter(here)
    build = BatchBuilder(config.features, config.tasks)
    parts = [scorer.score(build(rows.slice(n, SCORE_ROWS))) for n in range(0, rows.num_rows, SCORE_ROWS)]
    logits = np.concatenate(parts)
    for index, task in enumerate(config.tasks):
        name = f"teacher_logit_{task}"
        values = pa.array(logits[:, index], mask=~rows[name].is_valid().to_numpy())
        column = pc.replace_with_mask(lake[name].combine_chunks(), here, values)
        lake = lake.set_column(lake.schema.get_field_index(name), name, column)
    versions = pc.if_else(here, version, lake["teacher_version"].combine_chunks())
    lake = lake.set_column(lake.schema.get_field_index("teacher_version"), "teacher_version", versions)
    return scored._replace(lake=lake)


def test_a_block_scored_by_a_snapshot_that_has_learned_it_is_seen_both_ways(scored):
    broken = rescored(scored, max(scored.weights))
    assert scored_otherwise(broken) == []
    assert len(too_late_by_record(broken, "ctr")) > 50
    assert len(too_late_by_weights(broken)) > 50


def test_a_logit_of_another_snapshot_than_the_recorded_one_is_seen(scored):
    broken = rescored(scored, max(scored.weights))
    assert len(scored_otherwise(broken._replace(lake=restore_versions(broken, scored)))) > 50


def restore_versions(broken: Scored, scored: Scored) -> pa.Table:
    place = scored.lake.schema.get_field_index("teacher_version")
    return broken.lake.set_column(place, "teacher_version", scored.lake["teacher_version"])
