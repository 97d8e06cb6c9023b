"""A teacher that is wrong everywhere: +1 on every logit (ExFM, arXiv 2502.17494), or 1.5·logit − 1.

What is served of a student with an auxiliary head predicts as many clicks as its twin that never had a teacher. A
single head cannot: it learns the teacher's bias as it learns the labels. In small: test_student.py. Students are
networks alone here: what is stacked on a linear part (`wide`) is calibrated by the stack, whatever its teacher says.
"""

import pytest

from pipelines.core.config.settings import load
from tests.support.models.biased_teachers import ARMS, judged, logged

DEMO = "tests/fixtures/many_clicks.yaml"  # many clicks, which a difference of 2 % needs


@pytest.mark.slow
def test_on_the_generated_stream_a_biased_teacher_leaves_the_served_head_within_2_percent_of_its_twin():
    config = load(DEMO, ["source.impressions=180000", "student_defaults.model.wide=false"])
    arms = {name: ARMS[f"{name}, w = {w}"] for name, w in (("single head", 0.5), ("auxiliary head", 2), ("AH + SA", 2))}
    found = judged(config, logged(config, seed=1), seed=1, arms=arms)
    assert found.positives > 10_000
    for arm, wrong in found.arms:
        ratio = found.ratio(arm, wrong)
        if arm != "single head":
            assert ratio == pytest.approx(1, abs=0.02), (arm, wrong)
        elif wrong == "+ 1":
            assert ratio > 1.2, arm
        elif wrong == "1.5·logit − 1":
            assert ratio < 0.85, arm
