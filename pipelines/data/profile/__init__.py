"""A look at data, before anything is judged.

column    what a column holds, and that in a line
profile   what was found of a stream: columns, times, labels, verticals, rows that are refused
file      the columns of a Parquet file, by one pass of DuckDB
recorded  the profile of a recorded source
topics    the profile of Kafka topics that others feed
messages  the newest messages of a topic
rows      rows of a lake or of a Parquet file, as a table
codes     a table's columns as codes: values, or bins of numbers
times     event times as people write them
"""
