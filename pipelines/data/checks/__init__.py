"""Rules: each file holds rows of the table of findings, and the code that raises them.

check       `check_config`, `check_again`: all rules of a config and the profile of its data
examine     `examined`: all rules of labelled rows
report      findings as JSON and as text
rows        rows that would become dead letters, ids that repeat, weights, columns that say nothing
times       range and unit of event times
labels      label rates, and delays against windows
verticals   what students select
features    tables and transforms against the values
collisions  ids that share a row of a table
machine     memory, compiler and instructions that a config asks for
leakage     features that know the label
skew        features that were recorded otherwise than they are rebuilt
drift       features whose values change, by day and by vertical
supply      volume, label rates, unknown labels, missing logits, repeated rows
served/     what was served, compared with what became of it
"""
