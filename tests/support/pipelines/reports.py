"""A replay's report as its JSON value, small and made up, and browsers that show pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOUR_MS = 3_600_000


def interval(value: float, reach: float = 0.2, **more: Any) -> dict[str, Any]:
    both = {"low": value - reach, "high": value + reach}
    return {"value": value, "se": reach / 2, **both, "p": 0.001, "seed_sd": 0.1, "too_few": None, "of_rows": both,
            "of_seeds": both, **more}  # fmt: skip


def arm(gain: float | None = None, **more: Any) -> dict[str, Any]:
    mean = {"mean": 0.9, "se": 0.001}
    found = {name: mean for name in ("ne", "auc", "gauc", "calibration", "log_loss", "brier")}
    bins = [{"above": a / 10, "upto": a / 10 + 0.1, "rows": 100, "weight": 100.0, "predicted": a / 10 + 0.05,
             "observed": a / 10 + 0.04, "low": a / 10, "high": a / 10 + 0.1} for a in range(3)]  # fmt: skip
    found |= {
        "cost_ratio": 1.2, "rows_per_s": 5000.0,
        "reliability": {"seed": 1, "bins": {"quantile": bins, "width": bins}, "expected_error": 0.01,
                        "first_miscalibrated": {"row": 640, "sign": 1}, "clipped": {"share": 0.0, "cut": 0.0}},
        "decisions": {"top": [{"asked": 0.1, "threshold": 0.3, "shown": 10.0, "share": 0.1, "clicks": 4.0,
                               "recall": 0.4, "rate": 0.4, "value": None}], "thresholds": []},
    }  # fmt: skip
    if gain is not None:
        window = {"share": 0.1, "from_ms": 0, "to_ms": HOUR_MS, "rows": 50}
        after = window | {"share": 0.6, "from_ms": HOUR_MS, "to_ms": 2 * HOUR_MS}
        flip = {"after_ms": 1, "before_ms": 2, "after_share": 0.1, "before_share": 0.6, "sign": -1}
        found |= {
            "gain": interval(gain), "transfer": {"teacher": interval(0.5)},
            "by_window": {"windows": [window | interval(gain), after | interval(-gain)], "flips": [flip]},
            "watched": {"rows": [64, 128], "difference": [gain, gain], "low": [-9.0, 0.1], "high": [9.0, 2 * gain],
                        "log_e": 5.0, "stopped_at": 128, "sign": 1, "blocks": 2, "clipped_blocks": 0,
                        "rows_to_stop": 9000, "found": True},
            "segments": {"new <b>users</b>": {"rows": 40, "positives": 9, "too_few": "positives (9)",
                                              "gain": interval(gain, too_few="positives (9)"), "calibration": None,
                                              "log_e": 0.0, "found": False},
                         "evening": {"rows": 60, "positives": 30, "too_few": None, "gain": interval(-gain),
                                     "calibration": 1.01, "log_e": 9.0, "found": True}},
        }  # fmt: skip
    return found | more


def report(gain: float = 0.5, findings: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    """One student and task; arms `none`, `wide`, and one whose name is markup."""
    names = {"none": arm(), "wide": arm(gain), "<i>odd</i> & long": arm(-gain)}
    verdict = {"task": "ctr", "baseline": "none", "arm": "wide", "decision": "ship", "gain": interval(gain), "arms": 2,
               "cost": {"training": 1.2, "flops": 2.0, "parameters": 1.0}, "stopped_at": {"feed": 128},
               "words": "Ship wide: on ctr it has 0.50 % lower NE than none."}  # fmt: skip
    seen = {"rows": [100], "positives": [30], "too_few": None, "arms": names, "others": {}}
    overall = {name: {"gain": of["gain"]} for name, of in names.items() if "gain" in of}
    chosen = {"tuned": {}, "ne_of_trials": [None], "serving": {"parameters": 1000, "flops": 2000}}
    return {
        "sweep": {
            "config": "small", "config_hash": "abc", "date": "2026-01-02", "baselines": ["none"], "seeds": [1, 2],
            "tuning_seeds": [1], "best_twins": {"feed": "none"}, "trials": dict.fromkeys(names, 1), "code": ["0.1"],
            "source": "lake", "stream": "one for all seeds", "rows": {"1": 100}, "errors": "clusters of user_id",
            "judged_from": 0.5, "events_ms": [0, 2 * HOUR_MS], "command": "exfm replay spec.yaml",
            "spec": {"value": None}, "versions": {"torch": "2"},
        },
        "verdicts": [verdict], "comparisons": {"count": 6, "found": 2, "level": 0.05}, "notes": ["one seed <script>"],
        "data_checks": {"rows": 100, "findings": list(findings), "tables": []},
        "chosen": {"feed": dict.fromkeys(names, chosen)},
        "conditions": {"fresh": {"students": {"feed": {"ctr": seen}}, "overall": {"ctr": overall}}},
    }  # fmt: skip


def shown_by_chromium(page: Path, width: int = 390, dark: bool = False) -> str:
    """The document as Chromium holds it after loading, its scripts run. Raises CalledProcessError where it fails."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={page.parent / 'browser'}", f"--window-size={width},900", "--virtual-time-budget=2000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []), "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
