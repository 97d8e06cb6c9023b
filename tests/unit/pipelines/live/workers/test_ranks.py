"""What ranks tell each other, over the address by which other machines would reach them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import psutil
import pytest

from pipelines.live.workers.ranks import interface_towards
from streaming.ports import free_port

RANK = """
import json, sys, time
import numpy as np
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.ranks import Ranks
rank, ranks, address, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
us = Ranks(Rendezvous(rank, ranks, address, port), collective_s=5)
said = us.broadcast_text(lambda: time.sleep(7) or "found")  # longer than a collective may take
us.barrier()
if rank == 1:
    time.sleep(7)
us.barrier()
planned = [None]
if rank == 0:
    time.sleep(7)
    planned = ["a plan"]
us.group.broadcast(planned)
told = us.all_gather([rank, 10 * rank]).tolist()
wrapped = int(us.sum(np.array([2**63 - 1, 1], np.int64))[0])
found = [said, *planned, told, us.broadcast(7 + rank), us.all(True), us.all(rank == 0), list(us.shard(5)), wrapped]
print(json.dumps(found))
us.close()
"""


def address() -> str | None:
    """Of this machine, other than loopback."""
    found = [each.address for all_ in psutil.net_if_addrs().values() for each in all_ if each.family == socket.AF_INET]
    return next((each for each in found if not each.startswith("127.")), None)


@pytest.mark.slow
def test_ranks_meet_at_an_address_that_other_machines_reach_and_wait_for_the_slowest():
    here = address()
    if here is None:
        pytest.skip("this machine has no address but loopback")
    assert interface_towards(here) != "lo"
    port, ranks = free_port(), 3
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    started = [
        subprocess.Popen([*command, str(rank), str(ranks), here, str(port)], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        found = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    finally:
        for process in started:
            process.kill()
    shares = [[0], [1, 2], [3, 4]]
    told = [[rank, 10 * rank] for rank in range(ranks)]
    assert found == [["found", "a plan", told, 7, True, False, shares[rank], 2**63 - 3] for rank in range(ranks)]
