import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from exfm.checkpoint import load
from exfm.errors import ConfigError
from exfm.features import FeatureSet, SparseFeature
from exfm.ranks import RankGroup
from exfm.sharding import Sharding
from exfm.teacher import Teacher
from exfm.teacher_net import TeacherConfig

FEATURES = FeatureSet(sparse=[SparseFeature(name="ad", rows=50), SparseFeature(name="user", rows=81)])
CFG = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))


@pytest.fixture(autouse=True)
def no_group_is_open():
    """A worker that crashed in this process, in a test of crashes, has left its group open."""
    if dist.is_initialized():
        dist.destroy_process_group()
    RankGroup._opened = 0


def test_groups_of_one_process_share_it_until_the_last_is_closed():
    one, two = RankGroup(), RankGroup()
    one.close()
    one.close()
    assert dist.is_initialized()
    two.close()
    assert not dist.is_initialized()


def test_wrong_ranks_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"rank 2 is not in a world of 2"):
        RankGroup(2, 2)
    with pytest.raises(ConfigError, match="a world of 2 ranks needs a master_port"):
        RankGroup(0, 2)
    with RankGroup(), pytest.raises(ConfigError, match="rank 1 of 2 was asked for in a process that is rank 0 of 1"):
        RankGroup(1, 2, master_port=1)


@pytest.mark.parametrize("sharding", [None, "table_wise", "row_wise"])
def test_tables_start_the_same_and_are_read_whole_however_they_are_cut(sharding):
    with RankGroup() as group:
        asked = Sharding() if sharding is None else Sharding(types=(sharding,))
        teacher = Teacher(CFG, FEATURES, ["ctr"], 0, group=group, sharding=asked)
        expected = Teacher(CFG, FEATURES, ["ctr"], 0, group=group).snapshot()
        assert all(torch.equal(v, expected[k]) for k, v in teacher.snapshot().items())
        for table in teacher.plan.plan["tables"].values():
            assert table.sharding_type == (sharding or "table_wise")
            assert table.compute_kernel == "fused"


def test_a_teacher_without_a_group_opens_and_closes_its_own():
    teacher = Teacher(CFG, FEATURES, ["ctr"], 0)
    assert dist.is_initialized()
    teacher.close()
    assert not dist.is_initialized()


RANK = """
import sys
import numpy as np, pyarrow as pa, torch
from exfm.threads import set_threads
set_threads(1)
from exfm.batch import BatchBuilder
from exfm.checkpoint import save
from exfm.ranks import RankGroup
from exfm.sharding import Sharding
from exfm.teacher import Teacher
sys.path.insert(0, {tests!r})
from test_sharding import CFG, FEATURES
rank, world, port, sharding, root = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
build, rng = BatchBuilder(FEATURES, ["ctr", "cvr"]), np.random.default_rng(0)
with RankGroup(rank, world, master_port=port) as group:
    teacher = Teacher(CFG, FEATURES, ["ctr", "cvr"], 0, group=group, sharding=Sharding(types=(sharding,)))
    # Heads start at zero, so the tables' first gradients are next to nothing, and AdaGrad, which divides by their size,
    # would make rounding large. It is sharding that is compared here: start where heads have learned something.
    state, drawn = teacher.state(), torch.Generator().manual_seed(1)
    for name in sorted(state):
        if name.startswith("dense/heads") and not state[name].any():
            state[name].normal_(0, 0.3, generator=drawn)
    teacher.load_state(state)
    for step in range(20):
        rows = pa.table({{"ad": rng.integers(0, 99, 64), "user": rng.integers(0, 999, 64),
                         "label_ctr": rng.integers(0, 2, 64).astype("i1"),
                         "label_cvr": pa.array(rng.integers(0, 2, 64).astype("i1"), mask=rng.random(64) < 0.5)}})
        # Unequal shares, and in one step none at all for the last rank; row-wise sharding needs equal ones.
        cut = 32 if sharding == "row_wise" else 64 if step == 3 else 40
        teacher.train_step(build(rows if world == 1 else rows[:cut] if rank == 0 else rows[cut:]))
    save(root, "state", teacher.state(), {{}}, rank=rank, ranks=world, attempt=group.token)
"""


def train(world, sharding, root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = textwrap.dedent(RANK).format(tests=str(Path(__file__).parent))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, str(r), str(world), str(port), sharding, str(root)]
        )
        for r in range(world)
    ]
    assert [rank.wait(120) for rank in ranks] == [0] * world


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
def test_two_ranks_learn_what_one_learns(tmp_path, sharding):
    train(1, sharding, tmp_path / "one")
    train(2, sharding, tmp_path / "two")
    one, two = (load(tmp_path / ranks / "state").tensors for ranks in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")
