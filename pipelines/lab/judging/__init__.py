"""Comparison of models on the same rows, as functions of arrays: the half of a replay that trains nothing.

settings   the part of a spec that says what is judged, and how
figures    gains and metrics as functions of the judged rows
evidence   a gain under a sequential test, over event time, and segment by segment
segments   parts of a student's rows, by condition or by value
decisions  what models would show and bid
"""
