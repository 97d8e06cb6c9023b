"""Comparison of models on the same rows, as functions of arrays: the half of a replay that trains nothing.

settings    the part of a spec that says what is judged, and how
comparison  rows of every seed, gains of one model over another on them, and metrics
evidence    a gain under a sequential test, over event time, segment by segment; calibration
segments    parts of a student's rows, by condition or by value
decisions   what models would show and bid
"""
