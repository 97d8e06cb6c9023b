"""Sections that are words and tables: the verdict, every figure, decisions, data, what was run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.lab.judging.decisions import WORTH, worth_of
from pipelines.lab.judging.summaries import LABELS, counted, labels_learned, own_counts
from pipelines.lab.page.marks import number, signed, when
from pipelines.lab.page.markup import Html, el, folded, section, table
from pipelines.lab.page.reading import GAIN, Report, Seen, each_student, interval, times

CLASSES = {"ship": "ship", "do not ship": "stay"}


def verdict(report: Report) -> Html:
    findings = [f for f in report.get("data_checks", {}).get("findings", ()) if f["severity"] != "note"]
    loud = None
    if findings:
        parts = (el("p", el("b", f["where"]), ": ", f["seen"]) for f in findings[:3])
        more = el("p", el("a", "What was found out about the data", href="#data"))
        grave = any(f["severity"] == "stop" for f in findings)
        title = "Look at the data first" if grave else "Mind the data"
        loud = el("div", el("b", title), *parts, more, class_=f"finding {'stop' if grave else 'warn'}", role="note")
    return section("verdict", "The verdict", loud, *(_verdict(of) for of in report["verdicts"]))


def _verdict(of: Mapping[str, Any]) -> Html:
    kind = CLASSES.get(of["decision"], "undecided")
    word = el("div", of["decision"].upper(), " · ", of["task"], class_="word")
    if of["arm"] is None:
        return el("div", word, el("p", of["words"], class_="said"), class_=f"verdict {kind}")
    gain, cost = of["gain"], of["cost"]
    stops = [row for row in of["stopped_at"].values() if row is not None]
    facts = {
        "gain over " + of["baseline"]: f"{signed(gain['value'])} % of NE",
        "95 %, other rows and seeds": _reach(gain),
        "… other rows alone": _reach(gain["of_rows"]),
        "… other seeds alone": _reach(gain["of_seeds"]),
        f"p, among {of['arms']} arm{'s' * (of['arms'] != 1)}": _p(gain["p"], of["arms"]),
        "could have stopped at row": f"{max(stops):,}" if len(stops) == len(of["stopped_at"]) and stops else "not yet",
        "training, × the baseline": times(cost["training"]),
        "serving FLOPs, ×": times(cost["flops"]),
        "parameters served, ×": times(cost["parameters"]),
    }
    listed = el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts.items()), class_="facts")
    return el("div", word, el("p", of["words"], class_="said"), listed, class_=f"verdict {kind}")


def _reach(of: Mapping[str, Any]) -> str:
    return "unknown" if of["low"] is None else f"{signed(of['low'])} to {signed(of['high'])} %"


def _p(p: float | None, arms: int) -> str:
    return "unknown" if p is None else f"{min(1.0, p * arms):.2g}"


def figures(report: Report) -> Html:
    """Every condition, student and task in tables; the first one is open."""
    parts: list[Html] = []
    for condition, value in report["conditions"].items():
        for student, tasks in value["students"].items():
            for task, seen in tasks.items():
                counts = f"{counted(seen['rows'])} rows, {counted(seen['positives'])} positives"
                title = f"{condition} · {student} · {task}: {counts}"
                parts.append(folded(title, _figures(title, seen), open_=not parts))
    if labels := report.get("labels"):
        parts.append(table("what students learn of the labels that were logged", LABELS, labels_learned(labels)))
    return section("figures", "Every figure", *parts)


def _figures(title: str, seen: Seen) -> Html:
    names = ("ne", "log_loss", "brier", "auc", "gauc", "calibration")
    head = [
        "model",
        "rows",
        "positives",
        "NE",
        "log-loss",
        "Brier",
        "AUC",
        "GAUC",
        "calibration",
        GAIN,
        "transfer",
        "× training",
    ]
    rows = []
    for arm, of in seen["arms"].items():
        transfer = (of.get("transfer") or {}).get("teacher")
        cells = [*map(counted, own_counts(seen, arm)), *(_mean(of.get(name)) for name in names)]
        rows.append(
            [arm, *cells, interval(of.get("gain")), transfer and f"{transfer['value']:.2f}", times(of["cost_ratio"])]
        )
    for other, of in seen["others"].items():
        counts = map(counted, own_counts(seen, other))
        rows.append([f"({other})", *counts, *(_mean(of.get(name)) for name in names), interval(of["gain"]), None, None])
    return table(title, head, rows)


def _mean(of: Mapping[str, Any] | None) -> str | None:
    return None if of is None else f"{of['mean']:.4f}"


def decisions(report: Report) -> Html:
    said = (
        "What every model would have shown of the logged rows: those with the largest predictions, up to a share of "
        "all. Rows that were not logged are not known; what other choices are worth is told where propensities are."
    )
    parts = [folded(f"{s} · {t}", *_decided(report, f"{s} · {t}", seen), open_=k == 0)
             for k, (s, t, seen) in enumerate(each_student(report))]  # fmt: skip
    return section("decisions", "Decisions", el("p", said), *parts)


def _decided(report: Report, title: str, seen: Seen) -> Iterator[Html]:
    valued = report["sweep"]["spec"]["value"] is not None
    rows, bids, choices = [], [], []
    for arm, of in seen["arms"].items():
        decided = of.get("decisions") or {}
        for kind in ("top", "thresholds"):
            for kept in decided.get(kind, ()):
                rule = f"top {kept['asked']:.0%}" if kind == "top" else f"p ≥ {kept['asked']:g}"
                rate = kept["rate"] and f"{kept['rate']:.4f}"
                value = [None if kept["value"] is None else number(kept["value"])] if valued else []
                counts = f"{kept['shown']:,.0f}", f"{kept['clicks']:,.0f}", f"{kept['recall'] or 0:.1%}"
                rows.append([arm, rule, *counts, rate, *value, interval(kept.get("more_clicks"))])
        if utility := decided.get("utility"):
            gain = utility.get("gain")
            more = gain and f"{gain['value']:+.4g}" + (
                "" if gain["low"] is None else f" [{gain['low']:+.4g}, {gain['high']:+.4g}]"
            )
            bids.append([arm, f"{utility['per_row']:.4g}", more])
        seeds = report["sweep"]["seeds"]
        choices += [[arm, seed, *worth_of(one)] for seed, one in zip(seeds, of.get("ranking") or (), strict=False)]
    head = ["arm", "rule", "shown", "clicks", "of all clicks", "rate", *(["value"] if valued else []), "more clicks, %"]
    yield table(f"{title}: decisions, means over seeds", head, rows)
    if bids:
        yield table(f"{title}: expected utility of bids", ["arm", "per row", "more than the baseline"], bids)
    if choices:
        yield table(f"{title}: what choices are worth, by request", ["arm", "seed", *WORTH], choices)


def data(report: Report) -> Html:
    found = report.get("data_checks")
    if found is None:
        return section("data", "Data checks", el("p", "The data were not checked."))
    parts = [
        el("div", el("p", el("b", f["severity"].upper()), " ", el("b", f["where"])), el("p", f["seen"]),
           el("p", f["remedy"], class_="soft") if f["remedy"] else None, class_=f"finding {f['severity']}")
        for f in found["findings"]
    ] or [el("p", "Nothing was found.")]  # fmt: skip
    said = f"{found['rows']:,} rows were looked at before anything was trained."
    tables = [table(one["caption"], one["head"], one["rows"]) for one in found.get("tables", ())]
    return section("data", "Data checks", el("p", said), *parts, *(folded(t["caption"], made) for t, made in
                   zip(found.get("tables", ()), tables, strict=True)))  # fmt: skip


def run(report: Report) -> Html:
    about = report["sweep"]
    events = about.get("events_ms")
    facts = {
        "config": f"{about['config']} ({about['config_hash']})",
        "rows from": f"{about['source']}, {about['stream']}",
        "event times, UTC": f"{when(events[0], 1e12)} to {when(events[1], 1e12)}" if events else "unknown",
        "rows": counted(list(about["rows"].values())),
        "judged": f"after {about['judged_from']:.0%} of the stream",
        "seeds": ", ".join(map(str, about["seeds"])),
        "tuned with seeds": ", ".join(map(str, about["tuning_seeds"])),
        "errors": about["errors"],
        "code": ", ".join(about["code"]),
        "date": about["date"],
    }
    listed = el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts.items()), class_="facts")
    again = el("pre", about["command"], tabindex=0) if about.get("command") else el("p", "unknown", class_="soft")
    chosen = [
        [student, arm, json.dumps(of["tuned"]) if of["tuned"] else "as it is", len(of["ne_of_trials"])]
        for student, arms in report["chosen"].items() for arm, of in arms.items()
    ]  # fmt: skip
    return section(
        "run", "What was run", listed, el("h3", "The command that runs it again"), again,
        folded("The spec", el("pre", json.dumps(about.get("spec"), indent=1, ensure_ascii=False), tabindex=0)),
        folded("Settings chosen", table("settings chosen", ["student", "arm", "setting", "of"], chosen)),
        folded("Versions", table("versions", ["package", "version"], list(about["versions"].items()))),
        *(el("p", note, class_="soft") for note in report["notes"]),
    )  # fmt: skip
