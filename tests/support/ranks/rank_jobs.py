"""Small trainings for `spawned_ranks`, and how far apart they end."""

import torch

from tests.support.ranks.spawned_ranks import read

# Element-wise AdaGrad's first step on an element is lr, whatever its gradient; where terms cancel, rounding decides.
FP32 = {
    "row_wise_adagrad": {"sparse_optimizer": "row_wise_adagrad"},
    "adagrad": {"sparse_optimizer": "adagrad", "sparse_lr": 0.02},
}


MIXED = {
    "tables": {
        "ad": "row_wise",
        "user": "column_wise",
        "tiny": "data_parallel",
        "bag": "grid_shard",
        "seen": "row_wise",  # a sequence: one table, looked up for each of its places
    },
    "ranks_per_host": 2,
}


def job(name, ranks, cuts, optimizer="adagrad", double=True, **more):
    """`double`: the dense part in float64, and no sum of more than two terms in a table's float32."""
    cfg = {"sparse_optimizer": optimizer, "dense_dtype": "float64"} if double else FP32[optimizer]
    sharding = cuts if isinstance(cuts, dict) else {"types": [cuts], "ranks_per_host": 2 if ranks == 4 else None}
    return {"name": name, "ranks": ranks, "sharding": sharding, "cfg": cfg, "bags": not double} | more


def halving(job):
    """With accumulators that forget, at rows that are nowhere a multiple of a batch."""
    return job | {"cfg": job["cfg"] | {"accumulators": {"half_life_rows": 171}}}


def one(optimizer="adagrad", double=True):
    return job(f"one-{optimizer}-{double}", 1, "table_wise", optimizer, double)


LINEAR = ("wide/", "stack/")


def apart(root, name, reference):
    """The largest difference of any weight, accumulator or moment of the network."""
    a, b = read(root, name)["state"], read(root, reference)["state"]
    assert a.keys() == b.keys()
    network = [key for key in a if key != "rng" and not key.startswith(LINEAR)]
    return max((a[key].double() - b[key].double()).abs().max().item() for key in network)


def linear_apart(root, name, reference):
    """The largest relative difference in the linear part and the stack: its gradients are sums over a batch in single
    precision, whatever the network's."""
    a, b = read(root, name)["state"], read(root, reference)["state"]
    pairs = [(a[key].double(), b[key].double()) for key in a if key.startswith(LINEAR)]
    return max(((x - y).abs() / (1 + y.abs())).max().item() for x, y in pairs)


def assert_same_bits(root, name, reference):
    a, b = read(root, name)["state"], read(root, reference)["state"]
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
