"""Labels that are 1 twice in 1,000 rows: after the first 1,000 a model is about as good as their rate, at the least.

Here nothing can be learned but the rate, and 12,000 rows hold 25 labels that are 1: the worst case for a model.
"""

import numpy as np
import pyarrow as pa
import pytest

from exfm.features.batch import BatchBuilder
from exfm.metrics.classification import normalised_entropy
from exfm.models.engine import LOGISTIC, RATE, STUDENT, TEACHER, TWIN, StudentEngine
from exfm.models.teacher import Teacher
from exfm.parallel.group import RankGroup
from tests.support.models import teachers
from tests.support.models.students import FEATURES, SMALL

WORSE = 0.02
"""By how much more than the running base rate's any NE may be."""


@pytest.fixture(scope="module")
def excess():
    rng, rows = np.random.default_rng(3), 12_000
    table = pa.table(
        {
            "user": rng.integers(0, 200, rows),
            "ad": rng.integers(0, 50, rows),
            "topic": rng.integers(0, 10, rows),
            "hour": rng.random(rows).astype("f4"),
            "age": rng.normal(0, 1, rows).astype("f4"),
            "label_ctr": (rng.random(rows) < 0.002).astype("i1"),
            "teacher_logit_ctr": np.full(rows, -6.2, "f4"),
        }
    )
    build = BatchBuilder(FEATURES, ["ctr"])
    batches = [build(table.slice(at, 128)) for at in range(0, rows, 128)]
    engine = StudentEngine(SMALL, FEATURES, ["ctr"], 1, twin=True, baselines=True)
    steps = [engine.step(batch).results for batch in batches]
    with RankGroup() as group:
        teacher = Teacher(teachers.CFG, FEATURES, ["ctr"], 0, group=group)
        steps = [step | {TEACHER: teacher.train_step(b)} for step, b in zip(steps, batches, strict=True)]
    y = table["label_ctr"].to_numpy()[1_000:].astype(float)
    ne = {m: normalised_entropy(np.concatenate([s[m].logits[:, 0] for s in steps])[1_000:], y) for m in steps[0]}
    return {model: found / ne[RATE] - 1 for model, found in ne.items()}


@pytest.mark.parametrize("model", [STUDENT, TWIN, LOGISTIC, TEACHER])
def test_after_1000_rows_a_model_of_rare_labels_is_hardly_worse_than_their_rate(excess, model):
    assert excess[model] < WORSE
