"""Replays: many students over logged rows and teacher logits; compares arms, with intervals. A sweep also tunes.

settings  a replay as a frozen object, read from YAML
workspace its folder: where rows and parts are, and how parts are named
data      the batches of one student
jobs      what the processes compute: rows, teachers, students
choice    which setting an arm is judged with
judge     every arm against the baselines, for one student and task
details   figures of an arm beyond its gain
serving   what serving a student costs
report    the result: one table of cells, and what was run
verdict   which arm to ship
run       a replay from its rows to its report
"""
