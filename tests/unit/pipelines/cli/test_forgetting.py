"""The words of `exfm forget --table --id`: what is done, and what keeps the id."""

from __future__ import annotations

from pipelines.cli.tools.forgetting import forget
from pipelines.core.config.settings import dump, parse
from pipelines.core.run_dir.paths import RunDir
from tests.support.pipelines.raw_configs import small


def test_what_the_settlement_keeps_by_an_id_is_named_feature_by_feature(tmp_path):
    raw = small()
    raw["features"]["asof"] = [
        {"name": "user_rate", "by": "user_id", "rate": "ctr"},
        {"name": "pair_rate", "by": ["user_id", "ad_id"], "rate": "ctr"},
        {"name": "ad_rate", "by": "ad_id", "rate": "ctr"},
        {"name": "shown", "by": "user_id", "last": 3, "of": ["ad_id"]},
    ]
    run = RunDir(tmp_path / "run")
    run.root.mkdir()
    run.config.write_text(dump(parse(raw)))
    of_user, of_ad = (list(forget(run, table, "7", 0.0)) for table in ("user_id", "ad_id"))
    assert of_user[:2] == [
        "request 1: id 7 of table `user_id`",
        "  teacher: before it learns another row, once the run runs again",
    ]
    kept = "  These keep what they hold of it, until --everywhere: rows of the lake, predictions, snapshots from before"
    assert of_user[-1] == f"{kept}, as-of counts and lists of events by user_id (user_rate, pair_rate, shown)."
    assert of_ad[-1] == (
        f"{kept}, as-of counts and lists of events by ad_id (pair_rate, ad_rate), lists of events in which it stands "
        "(shown)."
    )
