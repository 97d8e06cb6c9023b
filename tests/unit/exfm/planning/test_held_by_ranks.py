"""What a plan says of ranks is what ranks then hold: four of them, under every strategy, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from exfm.parallel import Sharding
from exfm.planning import Plan, PlanQuestion, find_plan
from tests.support.models.plans import CFG, ELEMENT_WISE, FEATURES, RANKS, WORLDS, where
from tests.support.places import ROOT
from tests.support.ranks.ports import free_port

pytestmark = pytest.mark.slow  # four processes that each build nine teachers

FORKED = """
import json, os, sys
from exfm.parallel.group import RankGroup
from exfm.parallel.sharding import Sharding
from exfm.models.teacher import Teacher
from exfm.threads import set_threads
from tests.support.models.plans import CFG, ELEMENT_WISE, FEATURES, RANKS, WORLDS, trained
port, root = int(sys.argv[1]), sys.argv[2]
children = []
for rank in range(RANKS):
    if pid := os.fork():
        children.append(pid)
        continue
    set_threads(1)
    held = []
    with RankGroup(rank, RANKS, master_port=port) as group:
        for world in WORLDS:
            cfg = ELEMENT_WISE if world.pop("element_wise", False) else CFG
            teacher = Teacher(cfg, FEATURES, ["ctr"], 0, group=group, sharding=Sharding(**world), batch_rows=64)
            held.append({
                "plan": trained(teacher),
                "weights": sum(w.nbytes for windows in teacher.weights.windows.values() for _, w in windows),
                "optimizer": sum(m.nbytes for windows in teacher.accumulators.windows.values() for _, m in windows),
            })
    with open(f"{root}/{rank}.json", "w") as file:
        json.dump(held, file)
    os._exit(0)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """What each rank holds, in every world: [rank][world]."""
    root = tmp_path_factory.mktemp("held")
    code = [sys.executable, "-W", "ignore", "-c", FORKED, str(free_port()), str(root)]
    subprocess.run(code, check=True, timeout=60, cwd=ROOT)
    return [json.loads((root / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("number", range(len(WORLDS)), ids=lambda n: "+".join(WORLDS[n]["types"]))
def test_ranks_hold_what_the_plan_says(held, number):
    world = dict(WORLDS[number])
    cfg = ELEMENT_WISE if world.pop("element_wise", False) else CFG
    found = find_plan(PlanQuestion(FEATURES, cfg, Sharding(**world), RANKS, batch_rows=64))
    assert isinstance(found, Plan)
    for load, mine in zip(found.ranks, (rank[number] for rank in held), strict=True):
        assert (load.weight_bytes, load.optimizer_bytes) == (mine["weights"], mine["optimizer"])
        assert json.loads(json.dumps(where(found))) == mine["plan"]
