"""The lake: the log of augmented examples, with compaction, retention and vacuum.

delta/        Delta tables: checked commits, the log, locks and vacuum
erasure/      rows that a person had erased, and the holes that they leave
writer        the table and its one writer
reader        rows after a `lake_seq`
scan          chunks of rows, decoded once for all cursors that read near each other
source        the lake as a source of rows
readers       the registry of readers, whose rows are kept
layout        by which columns the lake is partitioned
compaction    merges small files
retention     deletes old rows
housekeeping  does both, and vacuum, in a thread of its own
side_tables   dead letters and late feedback
asof_table    as-of features of rows that came without them, by `lake_seq`
asof          computes them from the lake
logit_set     logits of another teacher, in the place of those that rows were logged with
withdrawn     logits and rows that readers are not to learn from any more
times         rows by their event time
where         a condition on rows, in words
settings      layout, and sizes and times of compaction, retention and vacuum
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
