"""What a plan says of ranks is what ranks then hold: four of them, under every strategy, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from exfm.parallel.layout import Sharding
from exfm.parallel.planning.placement import Plan, PlanQuestion, find_plan
from streaming.ports import free_port
from tests.support.models.plans import CFG, ELEMENT_WISE, FEATURES, RANKS, WORLDS, where
from tests.support.places import ROOT

pytestmark = pytest.mark.slow  # four processes that each build ten teachers, and as many scorers

FORKED = """
import json, os, sys
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.machine import set_threads
from tests.support.models.plans import CFG, ELEMENT_WISE, FEATURES, RANKS, WORLDS, held_by, made_by
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
            spread = {"group": group, "sharding": Sharding(**world), "batch_rows": 64}
            teacher = Teacher(cfg, FEATURES, ["ctr"], 0, **spread)
            scorer = TeacherScorer(cfg, FEATURES, ["ctr"], **spread)
            held.append({
                "learns": {
                    "plan": made_by(teacher.plan),
                    "weights": held_by(teacher, "/weight"),
                    "optimizer": held_by(teacher, "/accumulator"),
                },
                "scores": {
                    "plan": made_by(scorer.plan),
                    "weights": sum(piece.nbytes for piece in scorer.held),
                    "optimizer": 0,
                },
            })
    with open(f"{root}/{rank}.json", "w") as file:
        json.dump(held, file)
    os._exit(0)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """What each rank holds, in every world: [rank][world][learns or scores]."""
    root = tmp_path_factory.mktemp("held")
    code = [sys.executable, "-W", "ignore", "-c", FORKED, str(free_port()), str(root)]
    subprocess.run(code, check=True, timeout=120, cwd=ROOT)
    return [json.loads((root / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("does", ["learns", "scores"])
@pytest.mark.parametrize("number", range(len(WORLDS)), ids=lambda n: "+".join(WORLDS[n]["types"]))
def test_ranks_hold_what_the_plan_says(held, number, does):
    world = dict(WORLDS[number])
    cfg = ELEMENT_WISE if world.pop("element_wise", False) else CFG
    found = find_plan(PlanQuestion(FEATURES, cfg, Sharding(**world), RANKS, batch_rows=64, learns=does == "learns"))
    assert isinstance(found, Plan)
    assert len(found.linear) == len(found.tables) == 3
    for load, mine in zip(found.ranks, (rank[number][does] for rank in held), strict=True):
        assert (load.weight_bytes, load.optimizer_bytes) == (mine["weights"], mine["optimizer"])
        assert json.loads(json.dumps(where(found))) == mine["plan"]
