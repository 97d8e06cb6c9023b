"""Delta tables: checked commits, replaced files, the log, locks and vacuum. Knows nothing of the lake's rows.

table        commits with transaction identifiers that are compared
identifiers  their names
encodings    how the columns of a file are stored
handle       opens a table; its columns, and the metadata of its commits
files        the data files of a table, followed from commit to commit, and replaced in one
by_seq       rows of a table beside the lake, by `lake_seq`
remote       tables at an object store: where commits are made, and what follows them
log          the log on the disk: flushed, and diagnosed where it is damaged
torn         data files that are not what the log says of them
vacuum       deletes files that no version needs
lock         commits in flight keep vacuum away; one housekeeper at a time
"""
