"""Checks of this machine: every part that a run depends on, with a remedy for each failure.

checks           all checks in order
scope            what is to be checked, and the form of a check
software         Python, packages, threads, checksums
requirements     the pinned list: which exact versions belong together
machine          disk, memory, open files, compiler, GPU, clock
broker           Java, jars, and a real start
embedding_probe  what only a process of its own can find out
"""
