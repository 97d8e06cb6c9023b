"""Registry of a run: versions of its students, and the history of champions.

aliases    candidate, champion and previous, and how a decision changes them
ledger     the file that keeps every decision
"""
