"""A student's worker: learns its rows of the lake, judged on each batch before it learns it.

worker      the worker: step, checkpoint, report
further_rank  a rank of it beyond the first
state       what a checkpoint holds: the student, its figures, its provenance; resumed from the last one
reading     which rows and columns of the lake it reads, and the cache that the students of a process share
export      what is served, checked against the student
versions    what is published of it while it learns, and which version is champion
increments  what it learned since a moment ago, for servers that follow it live
warm        the weights of another student's checkpoint, to begin with
tables      what int8 and int4 tables cost a version
champion_challenger  champion and candidate on the same fresh rows
"""
