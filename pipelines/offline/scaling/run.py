"""All members of a family, one after the other, each in one pass over the same rows; finished passes are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.config import Config
from pipelines.display import Advance, rows_bar
from pipelines.offline import rows_of
from pipelines.offline.scaling.family import Passed, Trial, members, one_pass, result_path, save, stored
from pipelines.offline.scaling.picture import draw
from pipelines.offline.scaling.report import report
from pipelines.run_dir import RunDir
from streaming.disk import write_json

Say = Callable[[str], None]


def fit(
    config: Config,
    folder: Path,
    *,
    dials: Sequence[int],
    interactions: Sequence[str],
    limit: int,
    seeds: Sequence[int],
    rates: Sequence[float],
    run_dir: RunDir | None,
    say: Say,
) -> dict[str, Any]:
    """Train what is not trained yet, and report: returned, and written to `folder` as `scale.json` and `scale.png`.

    `rates` are dense learning rates that every member tries; empty: the config's rate.
    """
    found = members(config, dials, interactions)
    with rows_bar("settling rows", limit) as advance:
        rows = rows_of(config, folder, limit=limit, run_dir=run_dir, advance=advance)
    tried = rates or [config.teacher.model.dense_lr]
    trials = [
        Trial(member._replace(model=member.model.model_copy(update={"dense_lr": rate})), seed)
        for member in found
        for seed in seeds
        for rate in tried
    ]
    passes: dict[Trial, Passed] = {}
    count = rows.table.num_rows
    with rows_bar("training", count * len(trials)) as advance:
        for trial in trials:
            before = count * len(passes)
            path = result_path(folder, trial, config, rows)
            passed = stored(path)
            if passed is None:
                passed = one_pass(trial, config, rows, partial(_further, advance, before))
                save(path, passed)
                speed = f"{count / passed.seconds:,.0f} rows/s"
                say(
                    f"{trial.name}: {count:,} rows in {passed.seconds:.1f} s, {speed} ({len(passes) + 1}/{len(trials)})"
                )
            passes[trial] = passed
            advance(count * len(passes))
    value = report(config, rows, passes)
    write_json(folder / "scale.json", value)
    draw(value, folder / "scale.png")
    return value


def _further(advance: Advance, before: int, done: int) -> None:
    advance(before + done)
