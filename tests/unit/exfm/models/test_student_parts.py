"""A student whose trunk is computed in parts, a rank each: what one process learns, and what N ranks do."""

import os

import pytest
import torch

from exfm.models.engine import StudentEngine
from exfm.parallel.group import RankGroup
from exfm.parallel.parts import WHOLE, BatchParts
from streaming.ports import free_port
from tests.support.models.students import ARMS, FEATURES, FORGETFUL, SMALL, TASKS, stream

AGAIN = ARMS["adapter"].model_copy(update={"extra_steps": 1})


def learned(parts, arm, batches, **changes):
    cfg = SMALL.model_copy(update={"arm": arm, **changes})
    engine = StudentEngine(cfg, FEATURES, TASKS, 5, twin=True, baselines=True, parts=parts, full_batch=256)
    for batch in batches:
        batch.forget()
        engine.step(batch)
    return engine


def batches():
    return stream(1500) + stream(2, seed=4, batch_rows=1)  # of one row: other parts have none


@pytest.mark.parametrize("arm", [*ARMS.values(), AGAIN], ids=[*ARMS, "extra steps"])
def test_parts_learn_what_the_whole_learns_but_for_rounding(arm):
    given = batches()
    one = learned(WHOLE, arm, given).state()
    for count in (2, 3):
        parts = learned(BatchParts(count), arm, given).state()
        assert parts.keys() == one.keys()
        for name, tensor in one.items():
            if tensor.dtype == torch.int64 or "step" in name or "progress" in name:
                assert torch.equal(parts[name], tensor), name
            assert torch.allclose(parts[name].double(), tensor.double(), rtol=1e-4, atol=1e-5), name
    assert any(not torch.equal(parts[name], tensor) for name, tensor in one.items())


def test_two_ranks_are_to_the_bit_one_process_that_computes_two_parts(tmp_path):
    port, cases = free_port(), [(AGAIN, {}), (ARMS["none"], {}), (ARMS["adapter"], {"trunk": FORGETFUL})]
    given = batches()
    forked = os.fork()
    rank = 0 if forked else 1
    code = 1
    try:
        with RankGroup(rank, 2, master_port=port, timeout_s=60) as group:
            found = [learned(BatchParts(2, group), arm, given, **changes) for arm, changes in cases]
        torch.save([engine.state() for engine in found], tmp_path / f"{rank}.pt")
        code = 0
    finally:
        if not forked:
            os._exit(code)
    assert os.waitpid(forked, 0)[1] == 0
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for number, (arm, changes) in enumerate(cases):
        engine = learned(BatchParts(2), arm, given, **changes)
        assert engine.checksum() == found[number].checksum()
        for name, tensor in engine.state().items():
            assert torch.equal(ranks[0][number][name], tensor), name
            assert torch.equal(ranks[1][number][name], tensor), name
