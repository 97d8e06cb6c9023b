"""What no start can mend is told before the start."""

from __future__ import annotations

import shutil

import pytest

from exfm.errors import ConfigError
from exfm.parallel.planning.placement import find_plan
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.checks.check import check_again, check_config
from pipelines.data.checks.machine import judge_compiler, judge_precision
from pipelines.data.findings import Severity
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.preflight import check_ranks
from pipelines.teacher.plan.question import question_of
from streaming.errors import BadInput
from tests.support.pipelines.small_runs import small

TWO = {"teacher__ranks": 2, "kafka__examples__partitions": 2}


@pytest.mark.parametrize("section", ["teacher", "augmentation"])
def test_several_ranks_in_one_process_are_refused(section):
    config = small("nowhere:1", **(TWO | {"teacher__ranks": 1, f"{section}__ranks": 2}))
    with pytest.raises(BadInput, match=f"{section}.ranks is 2; leave --local out, or set {section}.ranks=1"):
        check_ranks(config, local=True)
    check_ranks(config, local=False)


def test_several_ranks_of_a_student_in_one_process_are_refused():
    raw = small("nowhere:1").model_dump(mode="json")
    raw["students"][1]["ranks"] = 2
    with pytest.raises(BadInput, match="ranks of student `brand` is 2; leave --local out, or set its ranks to 1"):
        check_ranks(parse(raw), local=True)
    check_ranks(parse(raw), local=False)


def test_tables_that_do_not_fit_their_ranks_are_told_before_anything_is_made(tmp_path):
    config = small("nowhere:1", **TWO, teacher__sharding={"memory_gb": 1e-5})
    words = r"the teacher's tables do not fit their ranks: table `user_id` .*teacher.ranks is 2"
    with pytest.raises(ConfigError, match=words):
        run(config, RunDir(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("section", ["teacher", "augmentation"])
def test_tables_that_fit_without_their_linear_part_alone_do_not_fit(section):
    def config(wide, **sharding):
        model = {"wide": wide}
        return small("nowhere:1", **{"teacher__model": model, f"{section}__sharding": sharding})

    network = find_plan(question_of(config(False), section))
    limit = {"memory_gb": network.fullest.bytes * 1.01 / 1e9}
    check_ranks(config(False, **limit), local=True)
    with pytest.raises(ConfigError, match=f"the {section}'s tables do not fit"):
        check_ranks(config(True, **limit), local=True)


def test_a_limit_holds_for_one_rank_too():
    with pytest.raises(ConfigError, match="do not fit"):
        check_ranks(small("nowhere:1", teacher__sharding={"memory_gb": 1e-5}), local=True)
    check_ranks(small("nowhere:1", teacher__sharding={"memory_gb": 1.0}), local=True)


def test_a_teacher_that_nothing_can_compile_is_told_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    config = small("nowhere:1", teacher__model={"compile": True})
    with pytest.raises(ConfigError, match=r"teacher.model.compile needs a C\+\+ compiler"):
        run(config, RunDir(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    (finding,) = judge_compiler(config)
    assert (finding.severity, finding.where) == (Severity.STOP, "teacher.model.compile")
    assert not list(judge_compiler(small("nowhere:1")))


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ("flags\t\t: fpu avx2 avx512f", True),
        ("flags\t\t: fpu avx512f avx512_bf16", False),
        ("flags\t: fpu amx_bf16 amx_tile", False),
        ("Features\t: fp asimd", True),
        ("Features\t: fp asimd bf16", False),
        ("model name\t: unknown", False),
    ],
)
def test_bf16_on_a_processor_that_emulates_it_is_warned_of_at_every_start(flags, warned, tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(judge_precision, "__defaults__", (cpuinfo,))
    config = small("nowhere:1", teacher__model={"precision": "bf16"})
    begun = check_again(config, RunDir(tmp_path / "run")).findings
    for findings in (check_config(config).findings, begun):
        found = [finding for finding in findings if finding.where == "teacher.model.precision"]
        assert [(f.severity, "18 ×" in f.seen, "fp32" in f.remedy) for f in found] == [
            (Severity.WARN, True, True)
        ] * warned
    assert not list(judge_precision(small("nowhere:1"), cpuinfo))
