"""Machine code that is kept on the disk: made once, taken again, and let go of when no process asks for it."""

from __future__ import annotations

import os
import shutil
import time

import pytest
import torch

from exfm.kernels.machine_code import KEPT_DAYS, machine_code


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_code_that_no_process_took_for_long_goes_when_other_code_is_made(tmp_path):
    def made(about):
        code = machine_code(lambda x: [x + 1], lambda n: [torch.ones(n, 2)], [0], about, "this test", folder=tmp_path)
        assert torch.equal(code([torch.zeros(3, 2)])[0], torch.ones(3, 2))
        return {path.stem for path in tmp_path.glob("*.pt2")}

    (first,) = made("first")
    (second,) = made("second") - {first}
    long_ago = time.time() - (KEPT_DAYS + 1) * 86_400
    for path in tmp_path.iterdir():
        os.utime(path, (long_ago, long_ago))
    made("second")  # it is taken, and so it is not old any more
    third = made("third") - {second}
    assert len(third) == 1
    assert {path.stem for path in tmp_path.iterdir()} == {second} | third
