"""A job for processes that must start fast: nothing heavy is imported."""

import os
import signal

from streaming.errors import BadInput


def square(job, tell):
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "fail":
        raise BadInput("no such thing; try another")
    tell(job)
    return job * job
