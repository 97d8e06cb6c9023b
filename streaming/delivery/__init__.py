"""Exactly-once delivery after a commit to the lake: blocks to the teacher, dead letters and late feedback.

header     what a message of the examples topic says about its block; which partition a row goes to
publisher  writes committed blocks to the examples topic
reader     reads complete blocks from it
outbox     delivers late feedback and dead letters to their tables and their topic
repairing  makes torn files of the lake again, from the examples topic
requeue    puts dead letters back onto the topics that they came from
trimming   the examples topic without what no reader needs any more
"""
