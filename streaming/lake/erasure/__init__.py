"""Erasure of rows from a lake and the tables beside it: for a person, not for age.

holes  the `lake_seq` that were erased: the lake has gaps there, and nowhere else
rows   a table rewritten without some rows, and without its history
"""
