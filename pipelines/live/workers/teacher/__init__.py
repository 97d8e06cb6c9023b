"""The teacher's worker: learns every block of the examples topic and publishes snapshots.

worker      the worker: step, checkpoint, report
block       the next block: how ranks agree on it, how far it is learned, what all of them made of it
candidate   a teacher that learns the lake beside it, to take its place
initial_state  what a teacher begins with that was trained before
further     a teacher beside the first, whose logits are a logit set
publisher   snapshots: written, pruned, written again where one was damaged
"""
