"""What people see of a finished run: the closing screen and `exfm report`, on narrow and wide terminals."""

from __future__ import annotations

import copy
import io
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.report import terminal
from pipelines.report.results.summary import Summary
from pipelines.report.screens.closing import print_closing
from pipelines.report.screens.report import print_report
from pipelines.report.screens.tables import Results, ne_table
from tests.support.pipelines.summaries import FEW, HALF, SUMMARY, figures, gain, summary_of

WIDTHS = (80, 120, 180)


def rendered(show, width):
    console = Console(width=width, file=io.StringIO())
    show(console)
    return console.file.getvalue()


def closing(width, summary=SUMMARY, root="runs/demo", overrides=()):
    config = load("configs/demo.yaml", list(overrides))
    return rendered(lambda c: print_closing(c, Summary.from_json(summary), RunDir(Path(root)), config), width)


def reported(width, summary=SUMMARY, whole=False):
    return rendered(lambda c: print_report(c, Summary.from_json(summary), whole=whole), width)


def words(text):
    return " ".join(text.split())


def rows(text, *starts):
    """The lines that begin with these words."""
    pattern = r"\s+".join(map(re.escape, starts)) + r"\s"
    return [line for line in text.splitlines() if re.match(pattern, line)]


# --- the closing screen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_the_closing_screen_of_recorded_rows_shows_what_was_read_of_each_column(width):
    seen = {"rows": 200, "nulls": 2, "smallest": 3, "largest": 90, "distinct": 41}
    columns = [{"name": f"c{n}", "type": "int64", "refused": 7 * (n == 15), **seen} for n in range(20)]
    recorded = SUMMARY | {"columns": columns, "run": SUMMARY["run"] | {"source": "recorded"}}
    text = closing(width, recorded)
    assert rows(text, "column", "type", "null", "refused", "distinct")
    (line,) = rows(text, "c15")
    assert line.split() == ["c15", "int64", "1.0%", "7", "41", "3", "to", "90"]
    assert len(rows(text, "c0") + rows(text, "c10") + rows(text, "c11")) == 2
    assert "8 more columns: `columns` of summary.json" in text
    assert "`columns` of summary.json" not in closing(width, SUMMARY | {"columns": columns})


@pytest.mark.parametrize("width", WIDTHS)
def test_the_closing_screen_leads_with_a_verdict_in_words_per_student(width):
    text = words(closing(width))
    verdict = (
        "feed: the teacher leads by 5.1 % on ctr, 5.1 % on cvr; this student gained 1.2 % [1.0, 1.4] on ctr (98,765 "
        "positives), 1.2 % [1.0, 1.4] on cvr (98,765 positives)"
    )
    assert verdict in text
    assert text.startswith("Verdict on the last half of the stream, as learned")
    assert text.index("Verdict") < text.index(" try ") < text.index("NE as learned (lower is better)")
    assert "try another seed: its gains show what one seed cannot" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_there_is_one_table_with_every_figure_on_one_line(width):
    text = closing(width)
    (line,) = rows(text, "feed", "ctr")
    assert line.split()[2:] == ["98,765", "0.9123", "0.9234", "0.8765", "0.7654", "+1.20", "[+0.98,", "+1.42]"]
    assert "AUC" not in text
    assert "of its time" not in text
    assert f"exfm report {Path('runs/demo')}" in text


@pytest.mark.parametrize("show", [closing, reported])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_table_is_too_long_or_broken_to_pieces(width, show):
    tables = show(width).partition("more   ")[0].partition("impressions in")[0]
    for line in tables.splitlines():
        assert len(line) <= width
        assert "…" not in line
        assert not re.fullmatch(r"\s*\S\s*", line), "a single character on a line of its own"
    assert "brand_de.v2" in tables


@pytest.mark.parametrize("width", WIDTHS)
def test_the_counts_are_told_with_a_verdict(width):
    text = words(closing(width))
    assert "600,123 impressions in 12m34s" in text
    assert "settled ctr 599,000, cvr 80,000 · not applicable ctr 0, cvr 519,000" in text
    assert "duplicates 1,100 · dead letters 23 (the counts balance)" in text
    assert "pending" not in text
    broken = copy.deepcopy(SUMMARY)
    broken["counts"]["lake_rows"] -= 1
    assert "DO NOT BALANCE" in words(closing(width, broken))


def test_nine_positives_are_too_few_to_tell():
    """They had an interval, [.92, 6.58], and an AUC to four digits."""
    summary = summary_of(feed={"cvr": FEW})
    text = words(closing(80, summary))
    assert "feed: this student has too few positives (9) to tell on cvr" in text
    assert "try a longer stream: feed has too few positives (9) to tell on cvr" in text
    for show in (closing, reported):
        for line in rows(show(180, summary), "feed", "cvr"):
            assert not re.search(r"0\.\d{3}|\[", line), line
    (line,) = rows(closing(180, summary), "feed", "cvr")
    assert line.split(maxsplit=3)[2:] == ["9", "– – – – too few positives (9) to tell"] or "too few" in line


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.0, 2.0, "this student gained 1.5 % [1.0, 2.0] on ctr (98,765 positives)"),
        (-2.0, -1.0, "this student lost 1.5 % [1.0, 2.0] on ctr (98,765 positives)"),
        (-1.0, 1.0, "this student is undecided on ctr: +0.0 % [-1.0, +1.0] (98,765 positives)"),
        (0.0, 0.0, "this student equals its twin on ctr (98,765 positives)"),
        (0.01, 0.03, "this student gained 0.02 % [0.01, 0.03] on ctr (98,765 positives)"),
    ],
)
def test_a_student_gained_lost_equals_its_twin_or_is_undecided(low, high, verdict):
    summary = summary_of(feed={"ctr": HALF | {"gain": gain(low, high)}})
    assert f"feed: the teacher leads by 5.1 %; {verdict}" in words(closing(120, summary))


@pytest.mark.parametrize(
    ("arm", "why"),
    [
        ({"kind": "auxiliary_head", "weight": 4.0, "follows": "advantage"}, "stayed 0: on earlier rows the teacher"),
        ({"kind": "auxiliary_head", "weight": 0.0, "follows": "nothing"}, "the weight of the teacher's term in its"),
        ({"kind": "none"}, "its arm `none` uses no teacher"),
    ],
)
@pytest.mark.parametrize("show", [closing, reported])
def test_a_student_that_equals_its_twin_is_told_why_though_the_teacher_leads(show, arm, why):
    summary = summary_of(feed={"ctr": HALF | {"gain": gain(0.0, 0.0), "lead": gain(8.0, 10.0)}})
    summary["run"] = {**summary["run"], "arms": {"feed": arm}}
    text = words(show(120, summary))
    assert "the teacher leads by 9.0 %; this student equals its twin on ctr" in text
    assert "try another arm for feed: it equals its twin on ctr, though the teacher leads, since" in text
    assert why in text


@pytest.mark.parametrize(
    ("lead", "told"),
    [(gain(-5, -3), "the teacher trails by 4.0 %;"), (gain(-1, 2), "the teacher is level with the twin;")],
)
def test_a_teacher_that_does_not_lead_is_told(lead, told):
    text = words(closing(120, summary_of(feed={"ctr": HALF | {"lead": lead}})))
    assert f"feed: {told} this student gained" in text


def test_a_student_that_saw_no_row_is_a_line_in_the_verdict_and_in_the_table():
    nothing = FEW | {"rows": 0, "positives": 0}
    text = closing(80, summary_of(feed={"ctr": HALF}, typo={"ctr": nothing, "cvr": nothing}, older={}))
    assert re.search(r"^typo: saw no row", text, re.MULTILINE)
    assert re.search(r"^older: saw no row", text, re.MULTILINE)
    assert re.search(r"^typo\s+cvr +0 .* saw no row", text, re.MULTILINE)
    assert "another seed" in words(text)  # the others are judged
    assert "try" not in closing(80, summary_of(typo={"ctr": nothing}))


def test_what_was_lost_stands_before_the_verdict():
    summary = copy.deepcopy(SUMMARY)
    summary["counts"]["dead_letters_by_reason"]["impression"]["undecodable"] = 90_000
    summary["counts"]["dead_letters"] = 90_000
    text = words(closing(80, summary))
    assert text.index("90,000 of 600,123") < text.index("Verdict")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_closing_screen_accounts_for_dead_letters_with_an_example(width):
    letter = {"topic": "impressions", "partition": 0, "offset": 17, "row": 3, "detail": "not JSON"}
    text = closing(
        width, SUMMARY | {"losses": SUMMARY["losses"] | {"examples": {"impression": {"undecodable": letter}}}}
    )
    said = words(text)
    assert "dead letters 23 of 600,123 impressions" in said
    assert "undecodable 23, e.g. impressions/0 offset 17 row 3: not JSON" in said


def test_what_is_not_known_is_a_dash():
    absent = dict.fromkeys(("no_teacher", "gain", "gain_by_group", "lead", "transfer_ratio"))
    half = HALF | absent | {"teacher": figures(None, None, None)}
    text = closing(80, summary_of(feed={"ctr": half}))
    (line,) = rows(text, "feed", "ctr")
    assert line.split()[2:] == ["98,765", "0.9123", "–", "0.7654", "–"]  # no column for a twin that none has
    assert "feed: this student has no twin to be compared with on ctr (98,765 positives)" in words(text)
    assert "try a twin (student_defaults: {twin: true})" in words(text)


@pytest.mark.parametrize(("low", "high", "colour"), [(1, 2, "32"), (-2, -1, "31"), (-1, 1, "33")], ids=str)
def test_a_gain_is_green_a_loss_red_and_an_open_question_yellow(low, high, colour):
    summary = Summary.from_json(summary_of(feed={"ctr": HALF | {"gain": gain(low, high)}}))
    console = Console(width=80, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(terminal.rendered(ne_table(Results(summary))))
    assert f"\x1b[{colour}m" in captured.get()


def test_a_short_generated_stream_shows_what_it_is_for_and_no_figures():
    summary = copy.deepcopy(SUMMARY)
    summary["counts"]["impressions_read"] = 80_000
    text = closing(80, summary, root="runs/demo-quick")
    assert "Everything ran: 80,000 generated impressions" in words(text)
    assert "nothing can be learned from it, so no figures are shown" in words(text)
    assert "0.9123" not in text
    assert "gained" not in text
    assert "--run-dir runs/demo-quick-long --set source.impressions=600000" in text
    assert "says nothing about them" in words(reported(80, summary))


def test_a_short_stream_of_ones_own_has_its_verdict():
    summary = copy.deepcopy(SUMMARY)
    summary["counts"]["impressions_read"] = 80_000
    summary["run"]["source"] = "recorded"
    assert "this student gained 1.2 %" in words(closing(80, summary))


def test_a_folder_named_like_markup_is_told_as_it_is():
    assert "runs/[bold]x/summary.json" in closing(80, root="runs/[bold]x")


def test_commands_to_copy_are_never_broken_and_another_seed_is_another_one():
    root = "runs/" + "long" * 20
    lines = closing(80, root=root, overrides=["seed=2", "source.seed=5"]).splitlines()
    assert any("mlflow ui --backend-store-uri" in line and line.endswith("mlflow.db") for line in lines)
    (again,) = (shlex.split(line) for line in lines if "seed=" in line)
    assert Path(again[0]).name == "exfm"
    assert again[1:] == [
        "stream", f"{root}/config.yaml", "--until-end", "--run-dir", f"{root}-seed-6", "--set", "seed=6",
        "--set", "source.seed=6",
    ]  # fmt: skip
    (report,) = (line for line in lines if line.startswith("more"))
    assert report.endswith(f"exfm report {root}")


# --- exfm report ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_has_the_rest(width):
    text = reported(width)
    ne, auc, teaching, gauc = rows(text, "feed", "ctr")
    assert ne.split()[2] == "98,765"
    assert auc.split()[2:] == ["98,765", "0.7345", "0.7234", "0.7456", "1.023", "0.987", "1.111"]
    assert teaching.split()[2:] == ["98,765", *["+5.08", "[+4.88,", "+5.28]", "0.23", "+1.21", "[+0.79,", "+1.62]"]]
    assert gauc.split()[2:] == ["98,765", "12,345", "999,999", "0.6345", "0.6234", "0.6456"]
    (teacher,) = rows(text, "teacher", "1,234,567")
    assert teacher.split()[1:5] == ["1,234,567", "8m20s", "12,346", "1,234"]
    assert "60% wait for teacher, 20% score" in words(text)
    assert "(the counts balance)" in words(text)


def test_the_whole_stream_is_shown_on_demand_and_each_table_names_its_window():
    assert "whole stream" not in reported(80)
    assert words(reported(80)).count("last half of the stream: ") == 4
    assert words(reported(80, whole=True)).count("whole stream: ") == 4


# --- by age of the stream ---------------------------------------------------------------------------------------------


def by_age(**models):
    """A summary whose student on ctr has these NE by tenth."""
    tenths = [{"rows": 9, "positives": 9} | {m: ne[n] for m, ne in models.items()} for n in range(10)]
    students = {"feed": {task: result | {"by_tenth": tenths} for task, result in SUMMARY["students"]["feed"].items()}}
    return SUMMARY | {"students": students}


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_has_ne_by_tenth_of_the_stream_for_every_model_on_one_line_each(width):
    text = reported(width, by_age(student=[1.3, *[0.81234] * 9], teacher=[57.12, *[0.9] * 9]))
    assert "NE by tenth of the stream" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["teacher", "57.1", *[".900"] * 9] in [line[-11:] for line in lines]
    assert ["student", "1.30", *[".812"] * 9] in [line[-11:] for line in lines]


def test_the_closing_screen_says_where_a_student_is_worse_than_the_running_base_rate():
    text = words(closing(80, by_age(student=[1.3, *[0.8] * 9], constant=[1.0] * 10)))
    assert "on ctr the student is worse than the running base rate in the first 10 % of the stream" in text
