"""A lock that another process holds."""

from __future__ import annotations

HOLDER = (
    "import fcntl, sys\nf = open(sys.argv[1], 'a')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint('held', flush=True)\ninput()"
)
