"""One model on several ranks.

group      the ranks: a process group, its collectives and its notes
layout     the ranks that there are, and which strategies may cut which tables: settings
sharding   the plan that follows
planner    TorchRec's planner as it is asked here: hardware, costs, bytes
tables     the tables at work on their ranks: look-up, update, weights
exchange   partial sums of embeddings, sent between ranks in unequal shares
parts      a batch in parts, a rank each: joined, and summed
comms      what ranks send each other: in how many bits, and how many bytes that makes
planning/  decisions before training: placement, cost, what size buys
"""
