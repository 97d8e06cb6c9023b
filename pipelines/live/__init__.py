"""A live run: its loop, its workers and where they run.

loop/      from the checks before a start to the summary after the end
rules/     pure rules: states, restarts, alarms, promotion
status/    what a run shows of itself while it lives
roster/    students spawned, paused, retired, listed
launch/    Ray actors, or this process
workers/   ingest, augmentation, teacher, student
feeds/     ordered rows for an engine
training/  what all training workers share
"""
