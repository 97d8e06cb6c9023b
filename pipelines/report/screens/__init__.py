"""Terminal output of a run.

screen    the live screen: a line per worker
stored    the status of another process's run
closing   the last screen of a run: verdicts and one table
report    all figures of a finished run
tables    tables of a finished run
students  the students of a run
losses    what was lost, and why
progress  bars of other commands
"""
