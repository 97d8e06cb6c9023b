"""Histories: what the earlier rows of an id were, as inputs of a student's later rows.

history  running averages; all histories of a feature set, and what a batch adds to them
recent   the last representations of an id, and the attention that reads them
moments  scale of the values
"""
