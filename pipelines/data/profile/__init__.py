"""Whether labelled rows are fit to learn from and to judge by: functions over an Arrow table, before anything trains.

finding     one thing found: how grave it is, where, what was seen, what to do
columns     a table's columns as codes: values, or bins of numbers
column_seen what a column holds, in a line
leakage     features that know the label
skew        features that were recorded otherwise than they are rebuilt
drift       features whose values change, by day and by vertical
supply      volume, label rates, unknown labels, missing logits, repeated rows
examine     all of it, the gravest first
files       rows of a lake or of a Parquet file, for `exfm check`
"""
