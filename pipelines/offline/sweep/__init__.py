"""Sweeps: many students over logged teacher logits; which arm pays, with intervals.

settings  a sweep as a frozen object, read from YAML
place     where rows and parts are
data      the batches of one student
teachers  a teacher in lockstep, and the logits of its snapshots
jobs      what the processes compute: rows, teachers, students
choice    which setting an arm is judged with
judge     every arm against the baselines, for one student and task
figures   gains and metrics as functions of the judged rows
run       a sweep from its rows to its report
report    the report as one JSON value; text and picture show it
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
