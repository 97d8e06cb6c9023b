"""The registry of a run: the versions of its students, and who is champion when and why.

standing   candidate, champion and previous, and how a decision changes them
ledger     the file that keeps every decision
"""
