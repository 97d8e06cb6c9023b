"""Programs of ExFM: live runs, serving, replays, checks, reports, tracking, commands. It imports both other packages.

core/     the config, the run directory, shipped files
data/     data before it is trained on: profile, findings, a proposed config, this machine
live/     a live run: its loop, its workers, where they run
teacher/  a teacher beside the stream
capacity/ the price of a config at a rate of impressions
deploy/   files with which others start what a run needs
erasure/  erasing a person from a stopped run
lab/      training on logged rows: replay, judging, scaling, verify
report/   results as tables and figures, and how they are shown
serve/    students that answer requests
track/    MLflow, and the registry of versions
why/      what happened to an impression, a student's version, an alarm
ui/       a read-only page over a run
cli/      the commands

served_model   the loader that registered models name
served_rows    rows as a registered model is given them
"""
