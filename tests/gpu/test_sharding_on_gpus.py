"""What unit/exfm/parallel/test_sharding_equals_one_process.py holds on CPU, with FBGEMM's CUDA kernels and over NCCL.

NCCL wants a GPU for each rank: with one GPU a single rank is compared with one process on CPU, with two GPUs two ranks
are too. ms a step beside the CPU's: `python -m tests.benchmarks.bench_sharding --ranks 1 2 --device cuda`.
"""

import importlib.util
from typing import get_args

import pytest
import torch

from exfm.parallel.layout import ShardingType
from tests.support.ranks.rank_jobs import apart, assert_same_bits, halving, job, one
from tests.support.ranks.spawned_ranks import read, run

GPUS = torch.cuda.device_count()
ON_GPU = importlib.util.find_spec("fbgemm_gpu") and torch._C._dispatch_has_kernel_for_dispatch_key(
    "fbgemm::permute_1D_sparse_data", "CUDA"
)
pytestmark = [
    pytest.mark.skipif(not GPUS, reason="no GPU is seen here: FBGEMM's CUDA kernels and NCCL are not tested"),
    pytest.mark.skipif(bool(GPUS and not ON_GPU), reason="fbgemm's CPU build is installed: make setup VARIANT=cuda"),
    pytest.mark.timeout(900),
]
two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"NCCL over two ranks needs two GPUs, here {GPUS}")

DOUBLE, SINGLE = 1e-5, 1e-4  # what CPU's and CUDA's float32 make of the same sums, through 20 steps of AdaGrad


def jobs(ranks):
    return [
        *(job(f"{cut}-{ranks}", ranks, cut) for cut in get_args(ShardingType)),
        job(f"rows-{ranks}", ranks, "row_wise", "row_wise_adagrad"),
        job(f"fp32-{ranks}", ranks, "row_wise", "row_wise_adagrad", double=False),
        job(f"again-{ranks}", ranks, "row_wise", "row_wise_adagrad", double=False),
        job(f"ahead-{ranks}", ranks, "row_wise", "row_wise_adagrad", double=False, ahead=True),
        job(f"broken-{ranks}", ranks, "table_wise", broken=8),  # in a step in which only the last rank has rows
        job(f"without-{ranks}", ranks, "table_wise", without=8),
        halving(job(f"halving-{ranks}", ranks, "table_wise")),
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpu")
    cpu = [
        one(),
        one("row_wise_adagrad"),
        one("row_wise_adagrad", double=False),
        halving(one() | {"name": "one-halving"}),
    ]
    run(cpu, root)
    two = [*jobs(2), job("halves-2", 2, {"types": ["table_wise"], "comms": "fp16"})] if GPUS > 1 else []
    run([*jobs(1), *two], root, timeout_s=600, device="cuda")
    return root


ON_ANY_GPUS = pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=two_gpus)])


@ON_ANY_GPUS
@pytest.mark.parametrize("cut", get_args(ShardingType))
def test_every_way_to_cut_tables_learns_what_one_process_learns_on_cpu(root, cut, ranks):
    assert {kind for kind, _ in read(root, f"{cut}-{ranks}")["plan"].values()} == {cut}
    assert apart(root, f"{cut}-{ranks}", "one-adagrad-True") <= DOUBLE


@ON_ANY_GPUS
def test_row_wise_adagrad_and_single_precision_too(root, ranks):
    assert apart(root, f"rows-{ranks}", "one-row_wise_adagrad-True") <= DOUBLE
    assert apart(root, f"fp32-{ranks}", "one-row_wise_adagrad-False") <= SINGLE


@ON_ANY_GPUS
def test_accumulators_forget_there_too(root, ranks):
    assert apart(root, f"halving-{ranks}", "one-halving") <= DOUBLE


@ON_ANY_GPUS
def test_two_runs_are_the_same_to_the_last_bit(root, ranks):
    assert_same_bits(root, f"again-{ranks}", f"fp32-{ranks}")


@ON_ANY_GPUS
def test_batches_that_are_prepared_ahead_are_learned_to_the_same_bits(root, ranks):
    assert_same_bits(root, f"ahead-{ranks}", f"fp32-{ranks}")


@ON_ANY_GPUS
def test_a_step_that_is_not_finite_on_one_rank_changes_nothing_on_any(root, ranks):
    assert_same_bits(root, f"broken-{ranks}", f"without-{ranks}")


@two_gpus
def test_embeddings_travel_over_nccl_as_halves(root):
    found = apart(root, "halves-2", "table_wise-2")
    assert 0 < found < 1
