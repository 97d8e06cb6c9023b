"""A student whose trunk is computed in parts, a rank each: what one process learns, and what ranks do."""

import subprocess
import sys

import pytest
import torch

from exfm.parallel.parts import WHOLE, BatchParts
from streaming.ports import free_port
from tests.support.models.students import ARMS
from tests.support.ranks import student_parts
from tests.support.ranks.student_parts import AGAIN, every_case, learned


@pytest.mark.parametrize("arm", [*ARMS.values(), AGAIN], ids=[*ARMS, "extra steps"])
def test_parts_learn_what_the_whole_learns_but_for_rounding(arm):
    one = learned(WHOLE, arm).state()
    for count in (2, 3):
        parts = learned(BatchParts(count), arm).state()
        assert parts.keys() == one.keys()
        for name, tensor in one.items():
            if tensor.dtype == torch.int64 or name.endswith("/step"):
                assert torch.equal(parts[name], tensor), name
            assert torch.allclose(parts[name].double(), tensor.double(), rtol=1e-4, atol=1e-5), name
        assert any(not torch.equal(parts[name], tensor) for name, tensor in one.items())


def test_two_ranks_are_to_the_bit_one_process_that_computes_two_parts(tmp_path):
    port, files = free_port(), [tmp_path / f"{rank}.pt" for rank in (0, 1)]
    command = [sys.executable, "-W", "ignore", "-m", student_parts.__name__]
    ranks = [subprocess.Popen([*command, str(n), "2", str(port), str(file)]) for n, file in enumerate(files)]
    try:
        alone = dict(every_case(BatchParts(2)))
        assert [rank.wait(timeout=200) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for file in files:
        found = torch.load(file)
        for case, state in alone.items():
            assert found[case].keys() == state.keys()
            assert [name for name in state if not torch.equal(found[case][name], state[name])] == [], case
