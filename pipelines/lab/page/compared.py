"""Two finished replays side by side: what was run, and every figure that both have.

Gains of two replays are of different rows, seeds or code: their difference has the errors of both, as if independent.
Of the same rows it is surer than that says; put both arms into one spec to compare them in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.lab.page.markup import el, folded, section, table
from pipelines.lab.page.page import document
from pipelines.lab.page.reading import Report, each_student, interval
from streaming.errors import BadInput
from streaming.store.files import read_json

KINDS = ("replay.json", "sweep.json")
NORMAL = 1.96
ABOUT = ("config", "config_hash", "source", "stream", "rows", "seeds", "judged_from", "events_ms", "code", "date")


class Both(NamedTuple):
    """What two replays, `names`, have of one arm; gains are intervals of the reports, None where one has none."""

    student: str
    task: str
    arm: str
    ne: tuple[float | None, float | None]
    gain: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]

    @property
    def apart(self) -> dict[str, float] | None:
        """The second gain less the first, with the errors of both."""
        a, b = self.gain
        if a is None or b is None or a["se"] is None or b["se"] is None:
            return None
        value, reach = b["value"] - a["value"], NORMAL * float((a["se"] ** 2 + b["se"] ** 2) ** 0.5)
        return {"value": value, "low": value - reach, "high": value + reach}


class Compared(NamedTuple):
    names: tuple[str, str]
    reports: tuple[Report, Report]
    both: list[Both]

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """What was run differently: settings of both, by name."""
        a, b = (report["sweep"] for report in self.reports)
        for key in ABOUT:
            if a.get(key) != b.get(key):
                yield key, a.get(key), b.get(key)
        specs = [of.get("spec") or {} for of in (a, b)]
        for key in sorted({*specs[0], *specs[1]}):
            if key not in ABOUT and specs[0].get(key) != specs[1].get(key):
                yield f"spec.{key}", specs[0].get(key), specs[1].get(key)

    def as_json(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "differences": [{"what": what, "values": [a, b]} for what, a, b in self.differences()],
            "verdicts": [report.get("verdicts", []) for report in self.reports],
            "arms": [one._asdict() | {"apart": one.apart} for one in self.both],
        }

    def rows(self) -> Iterator[list[str]]:
        """HEAD's columns."""
        for one in self.both:
            cells = [
                *("–" if ne is None else f"{ne:.4f}" for ne in one.ne),
                *(interval(gain) or "–" for gain in one.gain),
            ]
            yield [f"{one.student} · {one.task} · {one.arm}", *cells, interval(one.apart) or "–"]

    @property
    def head(self) -> list[str]:
        a, b = self.names
        return ["arm", f"NE, {a}", f"NE, {b}", f"gain %, {a}", f"gain %, {b}", "second less first"]


def compare(first: Path, second: Path) -> Compared:
    """Of two folders of finished replays. Raises BadInput where one is none, or both have no arm in common."""
    reports = (_report(first), _report(second))
    seen = [{(s, t): of for s, t, of in each_student(report)} for report in reports]
    both = []
    for (student, task), one in seen[0].items():
        other: Any = seen[1].get((student, task))
        for arm, of_one in one["arms"].items() if other is not None else ():
            if arm in other["arms"]:
                of_other: Any = other["arms"][arm]
                ne = [of["ne"] and of["ne"]["mean"] for of in (of_one, of_other)]
                both.append(Both(student, task, arm, (ne[0], ne[1]), (of_one.get("gain"), of_other.get("gain"))))
    if not both:
        raise BadInput(f"{first} and {second} have no arm of a student and task in common; compare replays of one spec")
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    return Compared(names, reports, both)


def page_of_two(of: Compared) -> str:
    """The comparison as a page that is whole by itself."""
    a, b = of.names
    words = [el("p", el("b", name), ": ", *(f"{v['words']} " for v in report.get("verdicts", ())))
             for name, report in zip(of.names, of.reports, strict=True)]  # fmt: skip
    changed = table(
        "what was run differently", ["setting", a, b], [[w, _text(x), _text(y)] for w, x, y in of.differences()]
    )
    parts = {
        "verdict": section("verdict", "The verdicts", *words),
        "figures": section(
            "figures", "Every arm that both have", table("under the first condition", of.head, of.rows())
        ),
        "run": section("run", "What was run differently", folded("settings", changed, open_=True)),
    }
    return document(f"{a} and {b}", parts)


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _report(folder: Path) -> Report:
    for name in KINDS:
        if (folder / name).is_file():
            report: Report | None = read_json(folder / name)
            assert report is not None
            return report
    raise BadInput(f"{folder} holds no finished replay: there is no {' or '.join(KINDS)} in it")
