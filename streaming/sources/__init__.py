"""Recorded and synthetic streams, played into the topics or settled in this process.

recorded       a file of rows, played as impressions and feedback
label_column   where a task's label is in such a file
timed_parquet  reads a Parquet file in order of event time
chunk          one stretch of a played stream; rows held until their time, and put in order
pacer          how fast a stream is sent
settled        settles a played stream without broker or lake
synthetic/     the generated ads stream, whose truth is known
tables/        files of rows as people have them, made one Parquet file in order of time
"""
