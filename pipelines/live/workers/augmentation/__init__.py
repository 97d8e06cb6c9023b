"""The data augmentation service: it settles impressions, scores them with the teacher and commits them to the lake.

worker     the worker: settled rows, blocks, scored blocks, commits
stream     the parts between topics and lake, opened at the last commit
feed       settled rows, from both input topics, and the time of day that bounds their event times
partitioned_feed  … of a stream whose partitions are settled by themselves, from all ranks that share it
shards     what each of those ranks does, and how rank 0 asks them
shared_block  a block whose rows stay with those ranks: they write and publish them, rank 0 commits
forgetting  ids that as-of features forget, at an event time that is written down
block      rows that have settled and are not committed yet, and rows as the lake stores them
commit     the four steps of a commit, and what resumes them after a crash
snapshots  which version of the teacher is loaded, and how old it is
one_teacher  the teacher's weights in memory that those ranks share, where they are on one machine
scoring    what scores rows: a replica of the teacher, or several ranks that hold its tables together
"""
