"""User files of rows, converted into one Parquet file in order of event time.

forms        which files lie at a path, and of which form they are
engine       DuckDB, held to a memory and to this machine
dialect      how the lines of a table are written, and which line is not
written      a value as it is written, and the value that is learned from: types proven on every row
conversion   text and folders as one Parquet file
in_order     rows sorted on disk, and times made where a file has none that can be read
preparation  a file of rows as one Parquet file in order of time, step by step
copies       the prepared file of each source, made once and found again
"""
