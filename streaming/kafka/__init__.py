"""Reading and writing Kafka topics.

settings      addresses, security, time-outs
secrets       passwords and tokens, read from where a config says
tokens        OAuth tokens, renewed before they expire
client        connections; explains the errors of the Kafka client
patches       what is changed inside that client, and the version that it fits
rights        what a client may do, and how a right that is missing is granted
topics        creates topics, asks for offsets
identity      whether topics are those that a run began with
reader        reads partitions from given positions
writer        writes messages, idempotent and acknowledged
unpacking     compressed batches, and fetches of many, unpacked within a bound
"""
