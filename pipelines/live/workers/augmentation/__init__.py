"""The data augmentation service: it settles impressions, scores them with the teacher and commits them to the lake.

worker         the worker: when a block is due, which snapshot scores it
feed           settled rows, from both input topics
clock          the time of day that bounds their event times
open_block     rows that have settled and are not committed yet
augment        the rows of a block as the lake stores them
commit         the four steps of a commit, and what resumes them after a crash
snapshots      which version of the teacher is loaded, and how old it is
scoring        what scores rows: a replica of the teacher, or several ranks
scoring_ranks  the ranks that hold its tables together
"""
