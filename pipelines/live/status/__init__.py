"""Status of a live run.

status     the state of the run and of each worker, as one value
file       status.json, always whole, rewritten every second, on a full disk too
counters   the most that each counter has been, over restarts
counts     the outcome of every row that was read
losses     the account of what was lost, and warnings
stored     status.json of another process's run, or of an earlier attempt: read, checked, stopped
"""
