"""A person's request for erasure: found everywhere in a run directory, and taken out (`exfm forget --where`).

inventory  every kind of file, what it may hold, what becomes of it: a table
person     whose rows: a condition, the impressions that it is found for, its values in texts
places     places that rows are in, in the order in which they are erased
models     checkpoints, snapshots, versions and pins that hold what was learned; tables that forget ids
erasure    what there is, in words and JSON; the erasure itself, which may be killed at any moment
"""
