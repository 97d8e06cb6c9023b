"""The report as one HTML page: whole by itself, readable by whoever reads it and however."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from pipelines.cli import console as cli
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.verdict import Verdict
from pipelines.lab.report.compare import compare
from pipelines.lab.report.page import page_of
from pipelines.lab.report.text import markdown
from pipelines.report.cells import Cell
from streaming.errors import BadInput
from tests.support.pipelines.reports import CHROMIUM, GOLDEN, cells_of, report, shown_by_chromium

VOID = {"meta", "br", "img", "link"}


class Read(HTMLParser):
    """Elements in order, their attributes, text by element; `wrong`: what is not closed as it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.feed(text)
        self.wrong += self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture(scope="module")
def read() -> Read:
    return Read(page_of(report()))


def test_the_page_is_whole_and_loads_nothing(read):
    assert read.wrong == []
    assert read.all("script") == []
    assert read.all("link") == []
    text = page_of(report())
    assert re.findall(r"(?:src|srcset|action)=|url\((?!#)|@import|https?://", text) == []
    assert all(link["href"].startswith("#") for link in read.all("a"))


def test_what_comes_from_outside_is_text(read):
    said = " ".join(text for _, text in read.text)
    assert "<i>odd</i> & long" in said
    assert "new <users>" in said
    assert "one seed <script>" in said


def test_links_lead_somewhere_and_ids_are_unique(read):
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in read.all("a"):
        assert link["href"][1:] in ids
    for _, attributes in read.elements:
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in ids


def test_every_picture_has_a_title_words_and_a_table_behind_it(read):
    pictures = [a for a in read.all("div") if a.get("role") == "img"]
    assert len(pictures) == 5  # over time, by rows, a forest, calibration, cost
    assert len(read.all("figure")) == len(pictures) == len(read.all("svg"))
    assert all(a["aria-label"] for a in pictures)
    order = [tag for tag, _ in read.elements if tag in ("figure", "svg", "table")]
    drawn = [k for k, tag in enumerate(order) if tag == "figure"]
    assert all(order[k : k + 3] == ["figure", "svg", "table"] for k in drawn)


def test_the_first_section_is_the_verdict_and_data_that_are_wrong_come_before_it(read):
    assert read.all("section")[0]["id"] == "verdict"
    finding = {"severity": "stop", "where": "feature clicked_before", "seen": "it knows the label", "remedy": "drop it"}
    loud = page_of(report(findings=(finding,)))
    assert loud.index("it knows the label") < loud.index("Ship wide")
    assert "Look at the data first" not in page_of(report())


def test_a_report_of_one_arm_has_no_comparison_and_is_a_page():
    alone = [cell for cell in cells_of("fresh") if cell.arm == "none"]
    none = Verdict(task="ctr", baseline="none", arm=None, decision="undecided", words="No arm.")
    spec = Spec(config="-", seeds=(1,), arms={"none": {}})
    read = Read(page_of(report(spec=spec, cells=tuple(alone), verdicts=(none,))))
    assert read.wrong == []
    assert [section["id"] for section in read.all("section")] == [
        "verdict", "calibration", "cost", "decisions", "figures", "data", "what-was-run",
    ]  # fmt: skip


def test_every_condition_has_its_segments_and_an_arm_of_other_rows_its_own_counts():
    spec = report().spec.model_dump() | {"conditions": {"fresh": {}, "late": {"lost": 0.2}}}
    labels = {"positives": 40, "learned": 30, "labels": 90, "gone": 0}
    more = [*cells_of("fresh"), *cells_of("late", 0.9, rows=77, positives=7)]
    more += [Cell("late", "", "ctr", "", f"labels/{name}", count) for name, count in labels.items()]
    read = Read(page_of(report(spec=Spec.model_validate(spec), cells=tuple(more))))
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len(read.all("svg")) == 6
    said = [text for _, text in read.text]
    assert "late: by segment" in said
    assert ["late", "ctr", "40", "30 (75%)", "90", "0"] in [said[k : k + 6] for k in range(len(said))]
    assert ["wide", "77", "7"] in [said[k : k + 3] for k in range(len(said))]
    assert ["wide", "100", "30"] in [said[k : k + 3] for k in range(len(said))]


PROBE = """<script>addEventListener("load", () => {
  const seen = {width: innerWidth, page: document.documentElement.scrollWidth, loaded:
    performance.getEntriesByType("resource").length, focus: [], paper: getComputedStyle(document.body).backgroundColor};
  for (const e of document.querySelectorAll("a,summary,[tabindex]")) { e.focus(); if (document.activeElement === e)
    seen.focus.push(e.tagName); }
  seen.wanted = [...document.querySelectorAll("a,summary,details[open] [tabindex],section > [tabindex],pre")].length;
  for (const d of document.querySelectorAll("details")) d.open = true;
  seen.opened = document.documentElement.scrollWidth;
  document.body.textContent = "PROBE" + JSON.stringify(seen) + "PROBE";
})</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1200, True)])
def test_a_browser_shows_it_on_a_phone_and_a_desk_in_light_and_dark(tmp_path, width, dark):
    path = tmp_path / "report.html"
    without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page_of(report()))
    path.write_text(without_policy.replace("</body>", PROBE))
    seen = json.loads(shown_by_chromium(path, width, dark).split("PROBE")[1].replace("&quot;", '"'))
    assert seen["page"] <= seen["width"]  # nothing sticks out, also with every table open
    assert seen["opened"] <= seen["width"]
    assert seen["loaded"] == 0
    assert {"A", "SUMMARY", "DIV", "PRE"} <= set(seen["focus"])
    assert seen["paper"] == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_its_policy_lets_no_script_run(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page_of(report()).replace("</body>", "<script>document.title = 'ran'</script></body>"))
    assert "<title>Replay of small, 2026-01-02</title>" in shown_by_chromium(path)


def test_two_replays_are_put_side_by_side_with_what_was_run_differently(tmp_path, capsys):
    for name, gain, seeds in (("monday", 0.5, (1, 2)), ("tuesday", 0.9, (1, 2, 3))):
        value = report(gain)
        value = value.model_copy(update={"spec": value.spec.model_copy(update={"seeds": seeds})})
        (tmp_path / name).mkdir()
        (tmp_path / name / "replay.json").write_text(value.model_dump_json())
    with pytest.raises(SystemExit) as left:
        cli.main(["replay", "--compare", str(tmp_path / "monday"), str(tmp_path / "tuesday"), "-o", str(tmp_path)])
    assert not left.value.code
    said = capsys.readouterr().out
    assert "feed · ctr · wide" in said
    assert "+0.50 [+0.30, +0.70] +0.90 [+0.70, +1.10] +0.40 [+0.12, +0.68]" in re.sub(r" +", " ", said)
    assert "spec.seeds: [1, 2] | [1, 2, 3]" in said
    assert Read((tmp_path / "compared.html").read_text()).wrong == []


def test_what_cannot_be_compared_is_told(tmp_path):
    with pytest.raises(BadInput, match=r"holds no finished replay: there is no replay\.json or sweep\.json"):
        compare(tmp_path, tmp_path)


def test_the_report_in_markdown_is_the_golden_one():
    """After a change that is meant: `python -m tests.support.pipelines.reports` writes it anew."""
    assert markdown(report()) == GOLDEN.read_text()
