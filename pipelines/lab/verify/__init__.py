"""Verification that replay equals live: a student of a run, retrained from the run's lake, compared with the run's
results, in bits.

run       which students, up to which checkpoint
retrain   the student's own worker over the lake, that keeps everything in memory
bits      predictions, tensors and counts, compared; the first place where they differ
verdict   the result, with the most likely cause, in words
"""
