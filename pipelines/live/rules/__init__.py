"""Pure rules of a run, without side effects, waiting or look-ups.

states            the states of a run and of a worker, and which may follow which
course            the next state of a run
kinds             what each kind of worker's end means to its run
causes            why a process died, from what it raised
restarts          restart what died, or give up
scoring_snapshot  which snapshot of the teacher scores the next block
promoting         whether a candidate takes the champion's place
alarms            stalled, mass dead letters, lag unknown, nothing read
shares            shares of rows, as far as few rows can show them
"""
