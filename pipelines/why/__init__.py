"""Answers to "what happened to …", from what a run keeps. Nothing is asked of its workers.

answer      the answers as data
impression  an impression: its records, its rows in the lake, who learned them
letters     dead letters, late feedback and what waits: what is no row of the lake
logits      a row's logits: which snapshot, how old, revoked or why there is none
learning    which students learned a row, will, or will not
on_topics   the records themselves, in Kafka: duplicates and the feedback that became the label
student     a version of a student, back to snapshots, rows and offsets
alarm       an alarm: since when, and what it is judged by
words       an answer in sentences
"""
