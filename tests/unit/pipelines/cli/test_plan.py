"""`exfm plan` as a person uses it: what fits is drawn, what does not is told with what would."""

from __future__ import annotations

import json

import pytest
import yaml

from exfm.parallel.planning.placement import Plan, find_plan
from pipelines.cli import console as cli
from pipelines.core.config.settings import load
from pipelines.teacher.plan import question as plan_question
from pipelines.teacher.plan.question import question_of
from pipelines.teacher.plan.screen import numbers
from tests.support.pipelines.raw_configs import changed, small


@pytest.fixture
def exfm(capsys, tmp_path, monkeypatch):
    """Plan a config: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(raw, *arguments):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(raw))
        with pytest.raises(SystemExit) as left:
            cli.main(["plan", str(path), *map(str, arguments)])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def large():
    """A hundred million users, in a config that is small otherwise."""
    return changed("features.sparse.0.rows", 100_000_000)


def test_a_plan_is_drawn_table_by_table_and_rank_by_rank(exfm):
    code, out, err = exfm(small(), "--dry-run", "--ranks", 2)
    assert (code, err) == (0, "")
    for part in ("tables", "ranks: bytes", "tables × ranks, by bytes", "what was tried", "all row_wise", "free choice"):
        assert part in out
    for feature in small()["features"]["sparse"]:
        assert feature["name"] in out
    assert "this machine" not in out


def test_the_json_says_it_all_and_adds_up(exfm):
    code, out, _ = exfm(small(), "--dry-run", "--ranks", 2, "--json")
    said = json.loads(out)
    assert (code, said["fits"], said["ranks_asked"], len(said["ranks"])) == (0, True, 2, 2)
    for bytes_ in ("weight_bytes", "optimizer_bytes"):
        tables = sum(table[bytes_] for table in said["tables"])
        assert tables + said["linear_part"][bytes_] == sum(rank[bytes_] for rank in said["ranks"]) > tables > 0
    assert said["cost_ms"] == max(rank["cost_ms"]["total"] for rank in said["ranks"])
    assert any(attempt["name"] == "free choice" for attempt in said["tried"])
    assert said["machine"] == []


def test_the_linear_part_is_one_line_and_nowhere_where_there_is_none(exfm):
    both = (), ("--set", "teacher.model.wide=false")
    for options in (("--dry-run", "--quick"), ("--dry-run", "--quick", "--memory-gb", 1e-5)):
        said, unsaid = (exfm(small(), *options, *more)[1] for more in both)
        assert sum(line.startswith("linear part ") for line in said.splitlines()) == 1
        assert "tables and linear part over 1 ranks" in said
        assert "linear part" not in unsaid
        said, unsaid = (json.loads(exfm(small(), *options, *more, "--json")[1]) for more in both)
        assert said["linear_part"]["weight_bytes"] == 4 * 4 * sum(table["rows"] for table in said["tables"])
        assert unsaid["linear_part"] is None


def test_a_world_that_nobody_here_has_is_planned_all_the_same(exfm):
    options = ("--dry-run", "--quick", "--ranks", 64, "--ranks-per-host", 8, "--memory-gb", 80, "--device", "cuda")
    code, out, _ = exfm(large(), *options)
    assert code == 0
    assert "over 64 ranks on 8 hosts (cuda, 80 GB each)" in out
    assert "…" in out  # 64 ranks are not listed one by one
    assert "what was tried" not in out


def test_what_does_not_fit_is_the_callers_mistake_told_with_what_would(exfm, tmp_path):
    code, out, err = exfm(large(), "--dry-run", "--ranks", 2, "--memory-gb", 1)
    assert code == 2
    first = large()["features"]["sparse"][0]["name"]
    assert err.startswith(f"exfm: table `{first}` (table_wise) needs ")
    assert "the largest free device has 1 GB" in err
    assert "what makes room" in err
    assert "tables, which do not fit" in out
    assert "100,000,000 × 16" in out
    assert "does not fit" in out
    assert out.count("which is exact") == 1  # three strategies are refused, for a reason told once


def test_a_remedy_can_be_set_as_it_is_printed(exfm, tmp_path):
    code, out, _ = exfm(large(), "--dry-run", "--ranks", 2, "--memory-gb", 1, "--json", "--quick")
    said = json.loads(out)
    assert (code, said["fits"], len(said["reasons"])) == (2, False, 1)
    assert said["tables"][0]["weight_bytes"] == 4 * 16 * 100_000_000
    assert said["remedies"]
    for remedy in said["remedies"]:
        settings = {"teacher.ranks": 2, "teacher.sharding.memory_gb": 1} | remedy["settings"]
        settings = {"kafka.examples.partitions": settings["teacher.ranks"]} | settings
        lines = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
        config = load(tmp_path / "run.yaml", lines)
        assert isinstance(find_plan(question_of(config)), Plan), remedy["words"]


def test_this_machine_is_looked_at_unless_told_otherwise(exfm, monkeypatch):
    monkeypatch.setattr("pipelines.data.doctor.machine.total_memory", lambda: 10**9)
    code, out, err = exfm(large(), "--quick")
    assert code == 2
    assert "this machine has 1 GB" in err
    code, out, err = exfm(small(), "--quick")
    assert code == 0
    assert "of this machine's 1 GB" in out
    code, _, err = exfm(small(), "--quick", "--ranks", 3)
    assert code == 2
    assert "kafka.examples.partitions=3" in err


def test_memory_that_is_promised_but_not_there_is_told(exfm, monkeypatch):
    monkeypatch.setattr("pipelines.data.doctor.machine.total_memory", lambda: 10**9)
    code, out, _ = exfm(small(), "--quick", "--memory-gb", 4)
    assert code == 0
    assert "1 ranks × 4 GB = 4 GB" in out


def test_more_ranks_than_cores_are_told(exfm, monkeypatch):
    monkeypatch.setattr(plan_question.os, "sched_getaffinity", lambda _: {0})
    raw = changed("kafka", {"examples": {"topic": "examples", "partitions": 2}})
    code, out, _ = exfm(raw, "--quick", "--ranks", 2)
    assert code == 0
    assert "they take turns" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "tpu"), "unknown device `tpu`; known devices: cpu, cuda"),
        (
            ("--device", "cuda", "--set", "teacher.model.embeddings={user_id: {kind: qr}}"),
            "embeddings.user_id: a table that is not `full` is held on CPUs only",
        ),
        (("--memory-gb", "-1"), "--memory-gb is -1"),
        (("--ranks", 6, "--ranks-per-host", 4), "6 ranks"),
        (("--set", "teacher.sharding.types=[column_wise]"), "row-wise AdaGrad"),
        (("--set", "teacher.sharding.tables={nobody: row_wise}"), "`nobody`"),
    ],
)
def test_a_question_that_makes_no_sense_is_told_in_a_paragraph(exfm, options, words):
    code, out, err = exfm(small(), "--dry-run", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_a_list_column_is_named_until_somebody_says_how_many_ids_it_has(exfm):
    raw = changed("rows.columns.1", {"name": "ad_id", "type": "list<int64>"})
    assert "`ad_id` reads a list; costs count 1 id a row" in exfm(raw, "--dry-run", "--quick")[1]
    said = exfm(raw, "--dry-run", "--quick", "--set", "teacher.sharding.ids_per_row={ad_id: 20}", "--json")[1]
    assert json.loads(said)["unknown_bags"] == []


def test_the_teacher_that_scores_is_planned_by_the_settings_of_augmentation(exfm):
    options = ("--scoring", "--dry-run", "--json", "--set", "augmentation.sharding.types=[row_wise]")
    said = json.loads(exfm(small(), *options, "--set", "augmentation.ranks=2")[1])
    assert {table["strategy"] for table in said["tables"]} == {"row_wise"}
    assert [rank["optimizer_bytes"] for rank in said["ranks"]] == [0, 0]
    assert (said["linear_part"]["strategies"], said["linear_part"]["optimizer_bytes"]) == (["row_wise"], 0)
    code, _, err = exfm(large(), *options, "--memory-gb", 1)
    assert code == 2
    assert "augmentation.ranks=" in err
    assert "kafka" not in err


def test_a_budget_plans_the_teacher_that_costs_so_many_times_the_flops(exfm):
    said = json.loads(exfm(small(), "--dry-run", "--quick", "--json", "--teacher-budget", "4x")[1])
    budget = said["teacher_budget"]
    assert budget["flops"] / budget["flops_before"] == pytest.approx(4, rel=0.15)
    assert budget["changes"]
    assert said["dense_bytes"] > json.loads(exfm(small(), "--dry-run", "--quick", "--json")[1])["dense_bytes"]
    assert "teacher.model: {layers: " in exfm(small(), "--dry-run", "--quick", "--teacher-budget", "2x")[1]


@pytest.mark.parametrize("budget", ["0x", "4", "many", "1000x"])
def test_a_budget_that_is_none_is_refused(exfm, budget):
    code, out, err = exfm(small(), "--dry-run", "--teacher-budget", budget)
    assert (code, out) == (2, "")
    assert f"--teacher-budget {budget}: give 1x to 64x" in err


def test_ranks_are_told_in_runs():
    assert numbers([3]) == "3"
    assert numbers([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
