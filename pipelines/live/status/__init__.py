"""Status of a live run.

status     the state of the run and of each worker, as one value
file       status.json, always whole, rewritten on a full disk too
disk       how much of the disk a run takes, by what grows in it
attempts   what the run did before it was resumed
heartbeat  status.json rewritten every second, whatever the run is busy with
stored     status.json of another process's run: read, checked, stopped
"""
