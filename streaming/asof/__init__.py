"""Counts and lists of the earlier events of a row's keys (as-of features), computed once, where topics are merged.

features    the state of all features of a stream: rows in merge order in, columns of the lake out
lookup      the features of rows that are asked about, from a stored state
forgotten   ids that are to be forgotten
key_table   accumulators of each key, with a cap and expiry
loops       the compiled loops over events and rows
"""
