"""Tensors in pieces: in the memory of several ranks, or on disk.

windows           reading any part of a tensor, wherever its pieces lie
named             states as tensors by name, and whether they fit a model
checkpoint        saving and loading states atomically: checkpoints, snapshots, served students
changed           states stored as the rows that changed since another, and when one is whole
delta             the changed rows of a state, or all of it, in a file and applied to another
row_quantisation  rows in 8, 4, 3 or 2 bits a value, each in the range that loses least
quantised_state   a state whose tables are quantised so on disk
manifest          what a saved directory says of itself, in every format that is read
staging           the folder in which several ranks write one checkpoint together
marks             places that were touched
stored            a tensor on disk, read by window and verified
increments/       what a student learned since a moment ago, for what serves it
"""
