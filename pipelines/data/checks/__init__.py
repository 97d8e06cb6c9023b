"""What is found out about a config and its data before anything is started.

check       `check_config`, `check_again`: all of it, as a report
sample      what was seen of the data: columns, times, labels, verticals, rows that are refused
recorded    makes a sample of a Parquet file
topics      makes a sample of Kafka topics that others feed
rows        judges columns and the rows that would become dead letters
times       judges range, unit and order of event times
labels      judges label rates, and delays against windows
verticals   judges what students select
features    judges tables and transforms against the values
collisions  ids that share a row of a table
compiler    judges whether what is to be compiled can be
precision   judges whether the processor has what the teacher computes in
memory      judges what a run takes against what the machine has
screen      a report as text
"""
