"""Whether a machine has room for one more student."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import Presence
from pipelines.live.loop.worker_spec import worker_specs
from pipelines.live.roster.estimate import MB, BackfillEstimate, processes_of, require_room
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import changed

NEW = BackfillEstimate("shop", 0, 99, 100, 100, {}, {}, None, 0, 10 * MB, None)


def config_of(cpus: float, **resources: int) -> Config:
    raw = changed("resources", {"cpus_per_worker": cpus, **resources})
    raw["augmentation"] = {"ranks": 2}
    return parse(raw)


@pytest.fixture
def cores(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.live.roster.estimate.os.cpu_count", lambda: 2)


def test_every_rank_is_a_process_and_students_that_share_are_as_few_as_will_do(tmp_path):
    for many, processes in ((1, 1 + 1 + 2 + 2), (2, 1 + 1 + 2 + 1)):
        config = config_of(0.1, students_per_host=many)
        assert len(config.students) == 2
        assert processes_of(config, worker_specs(config, RunDir(tmp_path), "", False)) == processes


def test_cores_are_asked_for_by_every_rank(tmp_path, cores):
    require_room(config_of(0.3), NEW, RunDir(tmp_path))
    with pytest.raises(BadInput, match=r"there are 6 processes, which ask for 2\.4 cores .* has 2; pause or retire"):
        require_room(config_of(0.4), NEW, RunDir(tmp_path))


def test_a_student_that_is_paused_takes_nothing_but_the_one_that_is_asked_for_does(tmp_path, cores):
    run_dir = RunDir(tmp_path)
    run_dir.roster.ask("feed", Presence.PAUSED)
    require_room(config_of(0.4), NEW, run_dir)
    with pytest.raises(BadInput, match="there are 6 processes"):
        require_room(config_of(0.4), replace(NEW, name="feed"), run_dir)


def test_memory_that_is_not_there_is_asked_for_in_words(tmp_path, cores):
    with pytest.raises(BadInput, match=r"`shop` needs 10,000,000,000 MB, and .* MB of memory are free"):
        require_room(config_of(0.1), replace(NEW, memory_bytes=10**16), RunDir(tmp_path))
