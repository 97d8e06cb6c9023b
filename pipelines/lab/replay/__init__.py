"""Replays: many students over logged rows and teacher logits; compares arms, with intervals. A sweep also tunes.

In the order of a replay:

load       a spec file, or lines of a command, parsed and resolved
settings   the spec as a frozen object, and the students that its arms make
problems   what does not fit together, refused before anything is made
workspace  spec, config and folder, and the rows and teachers that a replay is of
store      how each part is named, after all that decides its content
stream     the rows under a condition, as a lake would store them
jobs       what the processes compute: rows, teachers, students
choice     which setting an arm is judged with
flops      what training costs an arm, the teacher's share included
judge      every arm against the baselines, for one student and task
report     the result: one table of cells, and what was run
verdict    which arm to ship
run        a replay from its rows to its report
"""
