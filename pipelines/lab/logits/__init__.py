"""Teachers over recorded rows: sources of logits and initial weights besides a lake's columns.

teachers  a teacher in lockstep, and the logits of its snapshots
stored    a run's stored snapshots, which score rows again
rescore   a saved teacher scores rows of a lake again, into a logit set
settlement  rows of a privileged teacher, which knows what came later
pretrain  a teacher trained on recorded history, before any stream
starts    the checkpoints of a run's students, which an arm may start from
kept      what a replay needs of a run that goes on, in the folder of the replay
faults    logits that are missing, and labels that are lost or unknown
"""
