"""Launchers of workers: in Ray actors, or in this process.

ray          hosts of workers as Ray's actors, and which of them share one
local        workers in this process
ray_node     the processes of a Ray of the run's own
cluster      a Ray that others started: its machines are examined, its head is watched
machine_look what one of its machines lacks
fork_server  processes are forked from one that has imported what they need
preloaded    what those of workers need
forked       what asks it, in place of Python
host         workers that share a process
worker_copies the working copy of each process on such a machine, where the run is on object storage
ranks        a worker that is several processes, polled as one
"""
