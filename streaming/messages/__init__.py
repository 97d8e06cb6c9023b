"""Formats of Kafka messages, decoded and validated without trusting their content.

source        the contract of every source of rows: positions, ends, gaps
message       a message as it is read, and the mark of a topic's end
fingerprint   what a message is known by in another topic
codecs        messages to rows and back, Arrow or JSON
avro          Avro in Confluent's wire format to rows
examples      rows of the lake on the examples topic
undeclared    columns that messages have and the schema does not name
validation    the rules that a row must satisfy
limits        what values, lists and rows may be at most
dead_letters  rows and messages that were refused
ipc           Arrow IPC streams, read defensively
json_text     JSON values of Arrow columns
times         times in every form, as milliseconds
"""
