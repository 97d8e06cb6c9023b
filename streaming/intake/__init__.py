"""Intake of impressions and feedback from Kafka: read, decoded and merged into one order.

intake   reads both topics; decides which partitions are idle
merge    one deterministic order over all partitions; event time
account  every offset of every input partition, and what became of it
moving   positions mapped onto copies of the topics
"""
