"""Records on the move: topics, settlement of labels, the lake. Knows no torch and no Ray.

kafka/       topics, read and written
messages/    formats of messages, decoded and validated
intake/      both topics read, decoded and put into one order
asof/        what was known of a row's key when the row was shown
settlement/  impressions and feedback become settled rows
lake/        the log of augmented examples
sources/     recorded and synthetic streams
delivery/    after a commit: blocks to the teacher, dead letters put back
broker/      the embedded broker
store/       atomic and durable writes
"""
