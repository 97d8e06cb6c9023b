"""Teachers saved by some ranks under one plan, and restored by others under another: for tests.

    python -m tests.support.ranks.restored_ranks PLANS.json ROOT

PLANS: {name: [ranks, sharding]}, or [ranks, sharding, settings of the teacher].
Every plan learns 3 steps, saves ROOT/middle/<plan>, learns 3 more, saves
ROOT/end/<plan>. Then every plan loads the middle of every plan, saves ROOT/restored/<from>-<to>, learns the other 3,
and saves ROOT/went-on/<from>-<to>.
"""

import json
import os
import sys
import time
import traceback
from itertools import islice
from pathlib import Path

from exfm.features.batch import BatchBuilder
from exfm.machine import set_threads
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.snapshots.checkpoint import Together, open_checkpoint, save_checkpoint
from streaming.ports import free_port
from tests.support.ranks.spawned_ranks import CFG, FEATURES, TASKS, batches, cuts, start


def learn(teacher, group, first, last):
    build = BatchBuilder(FEATURES, TASKS)
    for step, rows in enumerate(islice(batches(True), last)):
        at = cuts(step, group.world_size)
        if step >= first:
            assert teacher.train_step(build(rows[at[group.rank] : at[group.rank + 1]])).finite


def rank_main(rank, plans, ports, root):
    set_threads(1)

    def teachers(round_):
        for ranks in sorted({ranks for ranks, *_ in plans.values() if rank < ranks}):
            port = ports[round_][ranks] if ranks > 1 else None
            with RankGroup(rank, ranks, master_port=port, timeout_s=60) as group:
                for name, (count, sharding, *more) in plans.items():
                    if count == ranks:
                        cfg = TeacherConfig(**CFG, sparse_optimizer="adagrad", **dict(*more))
                        yield name, group, Teacher(cfg, FEATURES, TASKS, 0, group=group, sharding=Sharding(**sharding))

    def keep(where, name, teacher, group):
        together = Together(rank, group.world_size, group.token)
        save_checkpoint(root / where, name, teacher.state(), {}, together=together)

    for name, group, teacher in teachers("learn"):
        start(teacher)
        learn(teacher, group, 0, 3)
        keep("middle", name, teacher, group)
        learn(teacher, group, 3, 6)
        keep("end", name, teacher, group)
    for name, group, teacher in teachers("restore"):  # rank 0, whom all wait for, has seen everything saved
        for source in plans:
            teacher.load_state(open_checkpoint(root / "middle" / source).tensors)
            keep("restored", f"{source}-{name}", teacher, group)
            learn(teacher, group, 3, 6)
            keep("went-on", f"{source}-{name}", teacher, group)


def main():
    plans, root = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    counts = {ranks for ranks, *_ in plans.values()}
    ports = {round_: {ranks: free_port() for ranks in counts} for round_ in ("learn", "restore")}
    children = {}
    for rank in range(max(counts)):
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(rank, plans, ports, root)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children[pid] = rank
    failed, until = 0, time.monotonic() + float(os.environ.get("RANKS_TIMEOUT_S", "120"))
    try:
        while children and not failed and time.monotonic() < until:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                failed += bool(status)
                del children[pid]
            time.sleep(0.02)  # work: the only way to wait for any child, and no longer than so
    finally:
        for pid in children:
            failed += 1
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return failed


if __name__ == "__main__":
    sys.exit(main())
