"""Raw rows to tensors: everything between Arrow columns and a model's batch.

calendar     hours and days of a time
dense        one raw number, and the floats that it becomes, as config
sparse       features that are ids, as config
features     which raw columns a model reads and what becomes of them, as config
transforms   hashing, crosses, buckets, scaling: raw Arrow columns to table rows and floats
alike        features that are alike, made in one pass
as_served    a batch without what is known in training only
events       a row and the earlier events of its key, as tokens of a sequence
jagged       where the bags of a batch begin, and the ids of some of its rows
feature_cache what batches hold of a stretch of rows, made once for all models of a process
representation   a teacher's representation of rows, as a column
batch        `BatchBuilder` makes a `Batch` of tensors from Arrow rows
statistics   what rows so far were, by which the dense features of the next are scaled
learned_rows whose rows a student learns from
histories/   what earlier rows of an id were, as inputs of a student's next rows
sampling     negative downsampling: which rows are kept, and what each then counts
"""
