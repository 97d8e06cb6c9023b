"""A job for processes that must start fast: nothing heavy is imported."""

import os
import signal
import time

from streaming.errors import BadInput


def square(job, tell):
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "fail":
        raise BadInput("no such thing; try another")
    if job == "sleep":
        time.sleep(120)  # work: longer than any test
    if isinstance(job, int):
        tell(job)
    return job * job
