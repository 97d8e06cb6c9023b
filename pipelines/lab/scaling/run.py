"""All members of a family, one after the other, each in one pass over the same rows; finished passes are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.parts import load_part, save_part
from pipelines.lab.rows import Rows, rows_of
from pipelines.lab.scaling.family import Passed, Trial, members, one_pass, part_path
from pipelines.lab.scaling.picture import draw
from pipelines.lab.scaling.report import report
from pipelines.report.screens.progress import Advance, rows_bar
from streaming.store.files import write_json

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
    rates = rates or [config.teacher.model.dense_lr]
    trials = [
        Trial(member._replace(model=member.model.model_copy(update={"dense_lr": rate})), seed)
        for member in members(config, dials, interactions)
        for seed in seeds
        for rate in rates
    ]
    with rows_bar("settling rows", limit) as advance:
        rows = rows_of(config, folder, limit=limit, run_dir=run_dir, advance=advance)
    passes = _passes(config, folder, rows, trials, say)
    value = report(config, rows, passes)
    write_json(folder / "scale.json", value)
    draw(value, folder / "scale.png")
    return value


def _passes(config: Config, folder: Path, rows: Rows, trials: Sequence[Trial], say: Say) -> dict[Trial, Passed]:
    """One pass of every trial; those that `folder` holds are not made again."""
    passes: dict[Trial, Passed] = {}
    count = rows.table.num_rows
    with rows_bar("training", count * len(trials)) as advance:
        for trial in trials:
            path = part_path(folder, trial, config, rows)
            if (part := load_part(path)) is not None:
                passed = Passed(part["logits"], float(part["seconds"]), int(part["left_out"]))
            else:
                passed = one_pass(trial, config, rows, partial(_further, advance, count * len(passes)))
                save_part(path, **passed._asdict())
                speed, number = f"{count / passed.seconds:,.0f} rows/s", f"{len(passes) + 1}/{len(trials)}"
                say(f"{trial.name}: {count:,} rows in {passed.seconds:.1f} s, {speed} ({number})")
            passes[trial] = passed
            advance(count * len(passes))
    return passes


def _further(advance: Advance, before: int, done: int) -> None:
    advance(before + done)
