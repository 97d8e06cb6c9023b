"""A student that starts with another one's weights: what is taken by name and shape, and what is not."""

from __future__ import annotations

import torch

from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.engine import StudentEngine
from exfm.models.growth.refit import MadeWith
from exfm.models.growth.warm import HEADS, warm_start
from exfm.models.student_config import StudentConfig

USER, AD = SparseFeature(name="user", rows=10), SparseFeature(name="ad", rows=6)
BID = DenseFeature(name="bid")
CFG = StudentConfig(width=4)


def engine(features: FeatureSet, tasks=("ctr", "cvr"), seed: int = 1) -> tuple[StudentEngine, MadeWith]:
    return StudentEngine(CFG, features, tasks, seed, baselines=True), MadeWith.of(CFG, features, tasks, seed)


def learned(features: FeatureSet, tasks=("ctr", "cvr")) -> tuple[dict[str, torch.Tensor], MadeWith]:
    """A state in which every number differs from that of a new student."""
    other, made = engine(features, tasks, seed=7)
    return {
        name.removeprefix("student/"): t + 1 for name, t in other.state().items() if name.startswith("student/")
    }, made


def fresh(features: FeatureSet, tasks=("ctr", "cvr")) -> tuple[dict[str, torch.Tensor], MadeWith]:
    mine, made = engine(features, tasks)
    return mine.student.state(), made


def test_the_same_features_take_tables_dense_part_and_linear_part_alone():
    features = FeatureSet(sparse=(USER, AD), dense=(BID,))
    (mine, now), (theirs, was) = fresh(features), learned(features)
    found = warm_start(mine, theirs, was, now)
    for name, tensor in found.state.items():
        taken = name in found.taken
        kind = name.split("/")[0]
        expected = kind in ("dense", "wide") or (kind == "table" and name.endswith("/weight"))
        assert taken == expected, name
        assert torch.equal(tensor, theirs[name] if taken else mine[name]), name
    assert str(found) == "tables `ad`, `user`; 14 tensors of the dense part; the linear part"


def test_other_features_take_the_tables_of_the_same_definition():
    was_features = FeatureSet(sparse=(USER, AD), dense=(BID,))
    wider = SparseFeature(name="user", rows=20)
    other_ad = SparseFeature(name="ad", rows=6, transform="index")
    (mine, now), (theirs, was) = fresh(FeatureSet(sparse=(wider, other_ad))), learned(was_features)
    found = warm_start(mine, theirs, was, now)
    assert found.taken == ("table/user/weight",)
    engine_of_mine, _ = engine(FeatureSet(sparse=(wider, other_ad)))
    engine_of_mine.student.load_state(found.state)
    table = engine_of_mine.student.state()["table/user/weight"]
    assert torch.equal(table[:10], theirs["table/user/weight"])
    assert torch.equal(table[10:], theirs["table/user/weight"])  # a hashed id finds its row again


def test_heads_take_the_tasks_that_both_have():
    features = FeatureSet(sparse=(USER, AD), dense=(BID,))
    (mine, now), (theirs, was) = fresh(features, ("cvr", "ctr")), learned(features, ("ctr",))
    state = warm_start(mine, theirs, was, now).state
    assert torch.equal(state["dense/serving.weight"][1], theirs["dense/serving.weight"][0])
    assert torch.equal(state["dense/serving.weight"][0], mine["dense/serving.weight"][0])
    assert torch.equal(state["wide/s"], mine["wide/s"])


def test_heads_without_a_common_task_are_not_said_to_be_taken():
    features = FeatureSet(sparse=(USER, AD), dense=(BID,))
    (mine, now), (theirs, was) = fresh(features, ("like",)), learned(features, ("ctr",))
    found = warm_start(mine, theirs, was, now)
    assert not [name for name in found.taken if name.startswith(HEADS)]
    assert torch.equal(found.state["dense/serving.weight"], mine["dense/serving.weight"])


def test_heads_of_another_shape_are_not_said_to_be_taken():
    features = FeatureSet(sparse=(USER, AD), dense=(BID,))
    (mine, now), (theirs, was) = fresh(features), learned(features)
    theirs["dense/serving.weight"] = torch.cat([theirs["dense/serving.weight"]] * 2, 1)
    found = warm_start(mine, theirs, was, now)
    assert "dense/serving.weight" not in found.taken
    assert torch.equal(found.state["dense/serving.weight"], mine["dense/serving.weight"])


def test_a_twin_starts_with_the_others_twin():
    features = FeatureSet(sparse=(USER, AD), dense=(BID,))
    other = StudentEngine(CFG, features, ("ctr",), 7, twin=True)
    state = {name: tensor + (1 if name.startswith("student/") else 2) for name, tensor in other.state().items()}
    made = MadeWith.of(CFG, features, ("ctr",), 1)
    mine = StudentEngine(CFG, features, ("ctr",), 1, twin=True)
    mine.start_from(state, lambda new, old: warm_start(new, old, made, made).state)
    assert mine.twin is not None
    for model, name in ((mine.student, "student"), (mine.twin, "no_teacher")):
        assert torch.equal(model.state()["table/ad/weight"], state[f"{name}/table/ad/weight"])
