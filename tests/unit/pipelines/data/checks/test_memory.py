"""What a run takes of the machine's memory."""

from pipelines.data.checks.machine import FORKED, GB, LIBRARIES, asof_bytes, judge_memory, tables_bytes, worker_count
from tests.support.pipelines.small_runs import everything


def test_libraries_count_once_and_every_worker_for_what_is_its_own():
    config = everything("broker:1")
    fewest = tables_bytes(config) + LIBRARIES + worker_count(config) * FORKED
    assert not list(judge_memory(config, fewest + 2 * GB, local=False))
    assert [f.severity.value for f in judge_memory(config, fewest, local=False)] == ["warn"]
    assert 0 < asof_bytes(config) < GB / 100
    assert not list(judge_memory(config, tables_bytes(config) + LIBRARIES + asof_bytes(config), local=True))
    assert [f.severity.value for f in judge_memory(config, tables_bytes(config) // 2, local=True)] == ["stop"]
