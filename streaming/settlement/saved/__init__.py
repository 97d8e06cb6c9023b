"""Saved states of settlement, without a run: looked into, followed, rewritten.

waiting         what a state holds of one id, for people
follower        as-of features looked up in the newest state, for servers
settlement      a state restored, of the stream or of all partitions
erasure         a state without some impressions
repartitioning  states of partitions, for another number of partitions
"""
