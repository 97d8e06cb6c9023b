"""The configs of real streams, on the real streams where they are: every row settles, for a student that wants it."""

from collections import Counter

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core.config.settings import load
from pipelines.lab.rows import rows_of


def test_every_view_of_jd_settles_with_its_label_and_has_a_student(real_stream, tmp_path):
    path = real_stream("jd_browse_stream.parquet")
    config = load("configs/jd.yaml", [f"source.path={path}"])
    settled = rows_of(config, tmp_path, limit=None, run_dir=None, advance=lambda rows: None).table
    recorded = pq.read_table(path, columns=["cate", "label"])
    assert Counter(settled["vertical"].to_pylist()) == Counter(map(str, recorded["cate"].to_pylist()))
    assert pc.sum(settled["label_ctr"]).as_py() == pc.sum(recorded["label"]).as_py()
    assert settled["label_ctr"].null_count == 0
    wanted = [vertical for student in config.students for vertical in student.row_filter]
    assert sorted(wanted) == sorted(set(settled["vertical"].to_pylist()))
    largest = [vertical for vertical, _ in Counter(settled["vertical"].to_pylist()).most_common(2)]
    assert [student.row_filter for student in config.students[:2]] == [(vertical,) for vertical in largest]
