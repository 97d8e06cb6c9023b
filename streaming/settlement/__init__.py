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
waiting     what a saved state holds of one id, for people
follower    as-of features looked up in the newest saved state, for servers
state       saving and restoring all of it
erasure     a saved state without some impressions
config      lateness, deduplication horizon, clock skew
"""
