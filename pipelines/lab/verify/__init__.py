"""Verification that replay equals live: a student of a run, retrained from the run's lake, compared with the run's
results, in bits.

verdict   which students, up to which checkpoint, and the verdict
retrain   the student's own worker over the lake, that keeps everything in memory
bits      predictions, tensors and counts, compared; the first place where they differ
cause     the most likely reason
screen    the verdict for people
"""
