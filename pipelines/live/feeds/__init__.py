"""Feeds: ordered rows for an engine, from a topic, a lake or a table. A feed knows its position.

growth    sizes of batches and blocks that grow with the stream
cuts      where a batch ends, for students and for the teacher
own_rows  the rows that a student is for
student   rows of a lake or a table: filtered, sampled, cut, built
teacher   a rank's partitions of every block of the examples topic, cut into steps
table     a table in memory as a source
"""
