"""The whole page, from the report as one JSON value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.lab.page import pictures, sections
from pipelines.lab.page.markup import Html, el, joined
from pipelines.lab.page.reading import compared_arms, each_student
from pipelines.lab.page.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing is loaded from anywhere, and no script runs."""

PARTS = {
    "verdict": "Verdict",
    "time": "Over time",
    "segments": "Segments",
    "calibration": "Calibration",
    "cost": "Cost",
    "decisions": "Decisions",
    "figures": "Figures",
    "data": "Data",
    "run": "What was run",
}


def page_of(report: Mapping[str, Any]) -> str:
    """A document that is whole by itself."""
    compared = any(compared_arms(report, seen) for _, _, seen in each_student(report))
    parts = {
        "verdict": sections.verdict(report),
        "time": pictures.over_time(report) if compared else None,
        "segments": pictures.segments(report) if compared else None,
        "calibration": pictures.calibration(report),
        "cost": pictures.cost(report),
        "decisions": sections.decisions(report),
        "figures": sections.figures(report),
        "data": sections.data(report),
        "run": sections.run(report),
    }
    about = report["sweep"]
    return document(f"Replay of {about['config']}, {about['date']}", {k: v for k, v in parts.items() if v is not None})


def document(title: str, parts: Mapping[str, Html]) -> str:
    """A page of these parts, which are sections under the names of PARTS."""
    links = (el("li", el("a", PARTS[name], href=f"#{name}")) for name in parts)
    head = el(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        el("title", title),
        Html(f"<style>{STYLE}</style>"),
    )
    body = el(
        "body",
        el("a", "Skip to the verdict", href="#verdict", class_="skip"),
        el("header", el("h1", title), el("nav", el("ul", *links), aria_label="parts of this page")),
        el("main", joined(parts.values())),
        el("footer", el("p", "Gains are in % of the baseline's NE; above 0 is better.", class_="soft")),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"
