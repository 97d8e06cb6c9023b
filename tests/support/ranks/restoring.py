"""Teachers that take over from each other under other plans (`restored_ranks`), and the check of what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import torch

from exfm.snapshots.checkpoint import load_checkpoint
from exfm.snapshots.manifest import read_manifest

PYTHON = [sys.executable, "-W", "ignore", "-m", "tests.support.ranks.restored_ranks"]


def restored(plans, root, seconds):
    (root / "plans.json").write_text(json.dumps(plans))
    command = [*PYTHON, str(root / "plans.json"), str(root)]
    settings = {"RANKS_TIMEOUT_S": str(seconds), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | settings, timeout=seconds + 60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check(plans, root):
    for source, target in product(plans, plans):
        name = f"{source}-{target}"
        middle, end, again, on = (
            load_checkpoint(root / where / which).tensors
            for where, which in (("middle", source), ("end", source), ("restored", name), ("went-on", name))
        )
        assert middle.keys() == again.keys()
        for key, tensor in middle.items():
            assert torch.equal(again[key], tensor), (name, key)
        for key, tensor in end.items():
            if source == target:
                assert torch.equal(on[key], tensor), (name, key)
            else:
                torch.testing.assert_close(on[key], tensor, rtol=0, atol=1e-5, msg=lambda m, k=(name, key): f"{k}: {m}")
    files = {name: sorted(read_manifest(root / "middle" / name)["files"]) for name in plans}
    assert all(len(files[name]) == ranks for name, (ranks, *_) in plans.items())
