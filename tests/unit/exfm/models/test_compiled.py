"""A served student as compiled code: what is compiled is what is served, and what differs is refused."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.compiled import Graph, Packages
from exfm.models.served import PARITY, ServedStudent

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50),
        SparseFeature(name="user", rows=90),
        SparseFeature(name="hour", rows=24),
    ],
    dense=[DenseFeature(name="bid", transform="log1p")],
)
TRUNK = TrunkConfig(mlp=(8, 4))


def served(seed: int, features: FeatureSet = FEATURES, *, wide: bool = True) -> ServedStudent:
    """With a prior, a linear part and a stack that say something."""
    student = ServedStudent(TRUNK, 4, features, ["ctr", "cvr"], seed, wide=wide)
    generator = torch.Generator().manual_seed(seed)
    student.prior.positive += 3.0 * seed
    student.prior.negative += 70.0
    if student.wide is not None:
        student.wide.theta += 0.1 * seed
        student.wide.linear.weight.data.normal_(0, 0.1, generator=generator)
    return student


def batch_of(count: int, *, nulls: bool = False):
    random = np.random.default_rng(count)
    ids = {name: random.integers(0, 1000, count) for name in ("ad", "user", "hour")}
    columns = {name: pa.array(values) for name, values in ids.items()}
    if nulls:
        columns["ad"] = pa.array([None, *ids["ad"][1:]], pa.int64())
    return BatchBuilder(FEATURES, ["ctr", "cvr"])(pa.table(columns | {"bid": random.random(count)}))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_graph_says_what_the_student_says(count, wide):
    student, batch = served(1, wide=wide), batch_of(count)
    with torch.inference_mode():
        found = Graph(student)(batch.sparse.values().view(3, count), batch.dense)
    assert np.abs(found.numpy() - student.score(batch)).max() <= PARITY


@pytest.mark.parametrize("name", ["dlrm", "wukong", "dcn", "mlp"])
def test_a_compiler_can_read_the_graph_of_every_trunk(name):
    """What it reads are operators: of a loop it would know nothing."""
    features = FeatureSet(sparse=FEATURES.sparse, dense=FEATURES.dense)
    student = ServedStudent(TrunkConfig(name=name, mlp=(8, 4)), 8, features, ["ctr"], seed=1)
    batch = batch_of(5)
    given = batch.sparse.values().view(3, 5), batch.dense
    read = torch.export.export(Graph(student), given).module()(*given)
    assert np.abs(read.detach().numpy() - student.score(batch)).max() <= PARITY


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sequence": [SequenceFeature(name="seen", rows=9, length=2, units=1)]}, "it has sequences"),
        ({"history": [HistoryFeature(name="clicks", by="user", of="label_ctr")]}, "it has features of a history"),
        ({"dense": [DenseFeature(name="bid", transform="quantiles")]}, "it has features whose statistics are learned"),
    ],
)
def test_what_a_graph_has_not_is_said(more, words, tmp_path):
    student = served(1, FeatureSet(**{"sparse": FEATURES.sparse, "dense": FEATURES.dense} | more))
    with pytest.raises(ModelError, match=words):
        Packages(tmp_path).compile(student)
    assert student.compiled is None


def test_without_a_compiler_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ModelError, match=r"needs a C\+\+ compiler"):
        Packages(tmp_path).compile(served(1))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++, which is not installed")
def test_one_package_serves_every_version_of_a_shape_and_another_code_is_refused(tmp_path):
    for seed in (1, 2):
        student = served(seed)
        eager = {n: student.score(batch_of(n)) for n in (1, 7, 300)}
        odd = student.score(batch_of(9, nulls=True))
        Packages(tmp_path).compile(student)
        for n, logits in eager.items():
            assert np.abs(student.score(batch_of(n)) - logits).max() <= PARITY
        assert np.array_equal(student.score(batch_of(9, nulls=True)), odd)  # an empty bag: as before
        assert student.score(batch_of(0)).shape == (0, 2)
    (package,) = tmp_path.glob("*.pt2")
    other = served(3, wide=False)
    Packages(tmp_path).compile(other)
    (another,) = set(tmp_path.glob("*.pt2")) - {package}
    shutil.copy(another, package)  # of another shape, under this one's name
    with pytest.raises(ModelError):
        Packages(tmp_path).compile(served(1))
    package.write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot be used"):
        Packages(tmp_path).compile(served(1))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++, which is not installed")
def test_code_is_of_the_tensors_that_a_student_has_now_and_a_copy_has_its_own(tmp_path):
    """What takes up increments writes into the tensors in place, and copies the student now and then."""
    student, batch = served(1), batch_of(7)
    packages = Packages(tmp_path)
    packages.compile(student)
    first = student.score(batch)
    other = copy.deepcopy(student)
    for tensor in student.state_dict().values():
        if tensor.is_floating_point():
            tensor.mul_(1.5)
    now = student.score(batch)
    student.compiled = None
    assert np.abs(now - student.score(batch)).max() <= PARITY
    assert not np.array_equal(now, first)
    assert np.array_equal(other.score(batch), first)
    assert len(packages._loaded) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++, which is not installed")
def test_versions_that_come_and_go_leave_no_memory_behind(tmp_path):
    packages, student = Packages(tmp_path), served(1)
    packages.compile(student)
    tensors = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    held = psutil.Process().memory_info().rss
    for _ in range(50):
        student = student.with_tensors({name: tensor.clone() for name, tensor in tensors.items()})
        packages.compile(student)
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert psutil.Process().memory_info().rss - held < 10 * size
