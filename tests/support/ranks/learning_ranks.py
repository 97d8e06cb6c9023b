"""Ranks of the teacher that learn a topic, forked from one process: `python -m tests.support.ranks.learning_ranks
ASKED`. It prints their pids, then their exit codes; each rank writes `rank<n>.out` and `rank<n>.log`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from typing import Any, cast

import pipelines.live.workers.teacher  # noqa: F401  # before the fork: what takes long is to import torch
from pipelines.live.loop.worker_spec import WorkerBuilder
from pipelines.live.rules.kinds import Kind
from pipelines.live.training.account import Account
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.teacher.worker import TeacherWorker
from pipelines.live.workers.worker import Orders


def learn(asked: dict[str, Any], rank: int) -> None:
    """One rank, to the end of the lake or to the version that is asked. Prints each block's loss, then its report."""
    logging.basicConfig(level=logging.INFO, force=True)
    at = Rendezvous(rank, asked["ranks"], "127.0.0.1", asked["port"])
    built = WorkerBuilder(Kind.TEACHER, "teacher", asked["config"], asked["root"], asked["servers"], True, {})(at)
    worker = cast(TeacherWorker, built)
    worker.open()
    figures, finish = worker.tally.figures, worker.tally.finish

    def sums() -> dict[str, Any]:
        return {key.split("/")[1]: sums for key, sums in figures.state().items() if key.endswith("lifetime/sums")}

    before = sums()

    def finished(account: Account) -> None:
        nonlocal before
        finish(account)
        now = sums()
        loss = {t: float((now[t] - before[t])[2] / max((now[t] - before[t])[0], 1)) for t in now}
        before = now
        print(json.dumps({"block": worker.place.version - 1, "loss": loss}), flush=True)

    worker.tally.finish = finished  # type: ignore[method-assign]
    report = worker.report()
    while not report.done and report.teacher_version < asked["until"]:
        report = worker.advance(0.05, Orders(end_seq=asked["end_seq"]))
    worker.close()
    print(json.dumps(dataclasses.asdict(worker.report())), flush=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    pids: list[int] = []
    for rank in range(asked["ranks"]):
        pids.append(os.fork())
        if not pids[-1]:
            for stream, name in ((1, "out"), (2, "log")):
                os.dup2(os.open(f"{asked['root']}/rank{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            code = 1
            try:
                learn(asked, rank)
                code = 0
            except BaseException:
                logging.exception("rank %d", rank)
            os._exit(code)
    print(json.dumps(pids), flush=True)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)


if __name__ == "__main__":
    main()
