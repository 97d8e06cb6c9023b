"""The teacher's worker: learns every block of the examples topic and publishes snapshots.

worker      the worker: step, checkpoint, report
offer       how ranks agree on the next block
block       the block they agreed on, and how far it is learned
tally       what all ranks made of a block
publisher   snapshots: written, pruned, written again where one was damaged
"""
