"""Settlement: ordered impressions and feedback become settled rows, joined, windowed, deduplicated.

settlement  what settles when; the counters
shard       partitions that are settled by themselves, of one of the processes that share them
admission   which impressions are let in: not too old, and of a vertical that is taken
label_join  which impression a feedback row belongs to; which is a label, which late (attribution windows)
emission    which impressions are due, and in which order
orphans     feedback that waits for its impression
pending     impressions that wait for their windows
id_index    finds rows by the hash of their id
marks       a value per row, and bits per row, stored as a base and deltas
state       saving and restoring all of it
saved       saved states without a run: looked into, followed, rewritten
config      lateness, deduplication horizon, clock skew
"""
