"""Is a model any good before it has seen much? python -m tests.benchmarks.first_rows

Generated streams of several label rates and lengths, and recorded ones on request. Every model's log-loss on each tenth
of a stream, over that of the running base rate on the same rows; the first 1,000 rows are not judged. A model is fine
where no tenth is above 1.02 (with fifty positives chance alone makes as much), and it is no worse than a logistic
regression (FTRL) once a tenth of the stream is past.

    python -m tests.benchmarks.first_rows --recorded configs/jd.yaml source.path=jd_browse_stream.parquet
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from exfm.evaluate import progressive
from exfm.machine import set_threads
from exfm.metrics.classification import cross_entropy
from exfm.models.engine import STUDENT, TWIN, StudentEngine
from pipelines.core.config.settings import Config
from pipelines.core.config.settings import load as load_config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.data import Data, data_of
from pipelines.lab.logits.teachers import blocks_of, lockstep_logits, versions_of
from pipelines.lab.rows import rows_of
from streaming.schema import POSITION_FIELDS

REGIMES = ((0.002, 100_000), (0.002, 600_000), (0.02, 20_000), (0.02, 100_000), (0.2, 20_000), (0.2, 100_000))
SKIPPED, TENTHS, WORST, POSITIVES = 1_000, 10, 1.02, 50
MODELS = ("constant", "ftrl", TWIN, STUDENT, "teacher")
VERTICALS = {"feed": 0.45, "shop": 0.30, "video": 0.17, "travel": 0.08}


def regimes(seed: int) -> Iterator[tuple[str, Config]]:
    for rate, rows in REGIMES:
        verticals = ", ".join(f"{{name: {name}, share: {s}, base_rate: {rate}}}" for name, s in VERTICALS.items())
        changes = [f"source.verticals=[{verticals}]", f"source.impressions={rows}", f"source.seed={seed}"]
        yield f"{rate:.1%} of {rows:,}", load_config("configs/demo.yaml", [*changes, f"seed={seed}"])


def lake_of(config: Config, folder: Path) -> pa.Table:
    """The stream as the lake would hold it, with its teacher's logits."""
    columns = [n for n in config.rows.settled.names if n not in {f.name for f in POSITION_FIELDS} | {"event_date"}]
    table = rows_of(config, folder, limit=None, run_dir=None, advance=lambda done: None, columns=columns).table
    count, teacher = table.num_rows, config.teacher
    found = lockstep_logits(
        config, config.teacher_features, teacher.model, table, behinds=[0], advance=lambda done: None
    )[0].logits
    lake = {name: table[name] for name in table.column_names}
    lake |= {"lake_seq": pa.array(np.arange(count)), "block": pa.array(blocks_of(count, config))}
    lake["teacher_version"] = versions_of(count, config)
    for t, task in enumerate(config.tasks):
        lake[f"teacher_logit_{task}"] = pa.array(found[:, t], mask=~np.isfinite(found[:, t]))
    return pa.table(lake)


def predictions(config: Config, lake: pa.Table, student: StudentSettings) -> tuple[Data, dict[str, np.ndarray]]:
    """Logits (n, T) of every model on the student's rows, each made before its row was learned."""
    data, tasks = data_of(lake, config, student), config.student_tasks(student)
    engine = StudentEngine(
        student.model,
        config.student_features(student),
        tasks,
        config.seed,
        twin=True,
        baselines=True,
        learned_rows=student.learned_rows,
    )
    made = {name: np.full(data.labels.shape, np.nan) for name in MODELS}
    for prediction in progressive(engine, data.stream):
        assert prediction.judged is not None  # this student learns all of its rows
        for name, result in prediction.judged.results.items():
            made[name][prediction.scored.rows] = result.logits
    for t, task in enumerate(tasks):
        column = lake[f"teacher_logit_{task}"].take(pa.array(data.places)).combine_chunks()
        made["teacher"][:, t] = column.to_numpy(zero_copy_only=False)
    return data, made


def tenths(logits: np.ndarray, base: np.ndarray, labels: np.ndarray, known: np.ndarray) -> list[float]:
    """Σ log-loss / Σ log-loss of the base rate, by tenth of the stream, over the rows that are known; NaN: none."""
    found = []
    for part in np.array_split(np.arange(len(labels)), TENTHS):
        rows = part[known[part]]
        loss, rate = (cross_entropy(z[rows], labels[rows]).sum() for z in (logits, base))
        found.append(float(loss / rate) if len(rows) else np.nan)
    return found


def judge(name: str, config: Config, folder: Path, students: int) -> None:
    lake = lake_of(config, folder)
    for student in config.students[:students]:
        data, made = predictions(config, lake, student)
        for t, task in enumerate(config.student_tasks(student)):
            known = data.weights[:, t] > 0
            known[np.flatnonzero(known)[:SKIPPED]] = False
            known &= np.isfinite(made["teacher"][:, t])
            y = data.labels[:, t]
            if y[known].sum() < POSITIVES:
                continue
            by = {model: tenths(made[model][:, t], made["constant"][:, t], y, known) for model in MODELS[1:]}
            for model, found in by.items():
                worst, over = np.nanmax(found), np.nanmax(np.divide(found[1:], by["ftrl"][1:]))
                line = " ".join("–" if np.isnan(x) else f"{x:.3f}" for x in found)
                mark = "" if worst <= WORST else " !"
                figures = f"{worst:.3f}{mark} | {over:.3f} | {found[-1] / by['ftrl'][-1]:.3f}"
                positives = f"{int(y[known].sum()):,}"
                print(f"| {name} | {student.name} {task} | {positives} | {model} | {line} | {figures} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=31, help="of stream and models")
    parser.add_argument("--students", type=int, default=1, help="how many of a config's students are judged")
    parser.add_argument("--recorded", nargs="+", default=None, help="a config and overrides, in place of the regimes")
    asked = parser.parse_args()
    set_threads(1)
    if asked.recorded:
        streams = iter([(asked.recorded[0], load_config(asked.recorded[0], asked.recorded[1:]))])
    else:
        streams = regimes(asked.seed)
    print(
        "| stream | student, task | positives | model | loss / base rate's, by tenth | worst | over FTRL | at the end |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, config in streams:
        with tempfile.TemporaryDirectory() as folder:
            judge(name, config, Path(folder), asked.students)


if __name__ == "__main__":
    main()
