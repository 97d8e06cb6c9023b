import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from exfm.metrics.classification import metrics_of
from exfm.parallel.comms import SentBytes, codecs
from exfm.parallel.group import RankGroup
from streaming.ports import free_port
from tests.support.waiting import PATIENCE_S

CUTS = ("table_wise", "row_wise")

RANK = """
import json, os, socket, struct, sys
import numpy as np, pyarrow as pa, torch, torch.distributed as dist
from exfm.features.batch import BatchBuilder
from exfm.parallel.comms import SentBytes
from exfm.features.features import FeatureSet, SparseFeature
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.machine import set_threads

def sent_by_kernel():
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(fd))) as s:
                    total += struct.unpack_from("Q", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208), 200)[0]
        except (OSError, struct.error):
            pass
    return total

port, out = int(sys.argv[1]), sys.argv[2]
set_threads(1)
other = os.fork()  # imports take seconds: once is enough
rank = 0 if other else 1
FEATURES = FeatureSet(sparse=[SparseFeature(name=n, rows=200, transform="index") for n in ("ad", "user", "page")])
CFG = TeacherConfig(width=16, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,), sparse_lr=0.1, dense_lr=4e-3)
rng = np.random.default_rng(0)
level = {n: rng.normal(0, 1, 200) for n in FEATURES.sparse_names}
def batch():
    ids = {n: rng.integers(0, 200, 512) for n in FEATURES.sparse_names}
    p = 1 / (1 + np.exp(-sum(level[n][i] for n, i in ids.items())))
    table = pa.table(ids | {"label_ctr": (rng.random(512) < p).astype("i1")})
    return BatchBuilder(FEATURES, ["ctr"])(table[256 * rank : 256 * rank + 256])
batches = [batch() for _ in range(80)]
found = {}
with RankGroup(rank, 2, master_port=port, timeout_s=60) as group:
    for cut, comms, run, steps in (
        ("table_wise", "fp32", 0, 80),
        ("table_wise", "fp16", 0, 80),
        ("table_wise", "fp16", 1, 10),
        ("row_wise", "fp32", 0, 2),
        ("row_wise", "fp16", 0, 2),
    ):
        sharding = Sharding(types=(cut,), comms=comms)
        teacher = Teacher(CFG, FEATURES, ["ctr"], 0, group=group, sharding=sharding)
        logits = [teacher.train_step(b).logits[:, 0] for b in batches[:steps]]
        dist.barrier()
        before = sent_by_kernel()
        with SentBytes() as sent:
            for b in batches[:3]:
                teacher.train_step(b)
        found[f"{cut} {comms} {run}"] = {
            "by_kind": [[*kind, n] for kind, n in sorted(sent.by_kind.items())],
            "embeddings": sent.embeddings,
            "total": sent.total,
            "kernel": sent_by_kernel() - before,
            "logits": np.concatenate(logits).tolist(),
            "labels": torch.cat([b.labels[:, 0] for b in batches[:steps]]).tolist(),
        }
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(found, file)
if other:
    sys.exit(os.waitpid(other, 0)[1] != 0)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks counted and predicted, by `cut comms run`: one dictionary of each rank."""
    out = tmp_path_factory.mktemp("comms")
    command = [sys.executable, "-W", "ignore", "-c", RANK, str(free_port()), str(out)]
    ranks = subprocess.Popen(command, start_new_session=True)
    try:
        assert ranks.wait(PATIENCE_S) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
    return [json.loads((Path(out) / f"{r}.json").read_text()) for r in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_embeddings_and_their_gradients_take_half_the_bytes_and_nothing_else_changes(found, cut):
    for rank in found:
        full, half = rank[f"{cut} fp32 0"], rank[f"{cut} fp16 0"]
        assert full["embeddings"] > 0
        assert half["embeddings"] * 2 == full["embeddings"]
        assert half["total"] - half["embeddings"] == full["total"] - full["embeddings"]
    sent = Counter()
    for rank in found:
        sent.update({kind: n for _, kind, n in rank[f"{cut} fp16 0"]["by_kind"]})
    assert sent["float16"] == sent["bfloat16"] > 0  # forward and backward


@pytest.mark.slow
def test_the_bytes_counted_are_those_that_the_kernel_sent(found):
    """TCP's own count over all sockets of the process, with what gloo and the acknowledgements of steps add."""
    if not sys.platform.startswith("linux"):
        pytest.skip("TCP_INFO is Linux's")
    for rank in found:
        for run in rank.values():
            assert run["total"] <= run["kernel"] <= 1.05 * run["total"] + 20_000


@pytest.mark.slow
def test_what_is_learned_is_as_good(found):
    """Progressive validation on the second half: the rounding is seen, and costs no AUC."""
    half = len(found[0]["table_wise fp32 0"]["labels"]) // 2

    def column(comms, name):
        return np.concatenate([rank[f"table_wise {comms} 0"][name][half:] for rank in found])

    z, y = {comms: column(comms, "logits") for comms in ("fp32", "fp16")}, column("fp32", "labels")
    auc = {comms: metrics_of(logits, y).auc for comms, logits in z.items()}
    assert not np.array_equal(z["fp32"], z["fp16"])
    assert auc["fp32"] > 0.7
    assert abs(auc["fp16"] - auc["fp32"]) < 1e-3


@pytest.mark.slow
def test_two_runs_of_halves_are_the_same_to_the_bit(found):
    for rank in found:
        again = rank["table_wise fp16 1"]["logits"]
        assert rank["table_wise fp16 0"]["logits"][: len(again)] == again


def test_full_precision_needs_no_codec_and_a_half_keeps_the_range_of_gradients():
    assert codecs("fp32") is None
    forward, backward = next((c.forward, c.backward) for c in codecs("fp16").values())
    tiny = torch.tensor([1e-30, 1.0 + 2**-10])
    assert backward.decode(backward.encode(tiny)).tolist() == [pytest.approx(1e-30, rel=2**-8), 1.0]
    assert forward.decode(forward.encode(tiny)).tolist() == [0.0, 1.0 + 2**-10]
    assert forward.decode(forward.encode(torch.tensor([1e6, -1e6]))).tolist() == [65504.0, -65504.0]  # and not inf
    assert (forward.encode(tiny).dtype, backward.encode(tiny).dtype) == (torch.float16, torch.bfloat16)


def test_a_collective_that_cannot_be_counted_is_refused_rather_than_missed():
    with RankGroup() as group, SentBytes() as sent:
        group.sum(torch.ones(3))
        dist.all_reduce(torch.ones(3))
        with pytest.raises(NotImplementedError, match="gather_"):
            dist.gather(torch.ones(3), [torch.ones(3)])
    assert sent.total == 0
