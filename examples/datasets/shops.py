"""Apps and shops: TalkingData (clicks that become installs), TaobaoAd (display ads with users and products)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from examples.datasets.published import PLACE, Dataset, Tables, csv, numbered

TALKING_COLUMNS = {
    **dict.fromkeys(["ip", "app", "device", "os", "channel"], "BIGINT"),
    "click_time": "TIMESTAMP",
    "attributed_time": "TIMESTAMP",
    "is_attributed": "TINYINT",
}
LARGEST_APPS = 8


def _talking_rows(tables: Tables) -> str:
    table = tables["train"]
    largest = f"SELECT app FROM {table} GROUP BY app ORDER BY count(*) DESC, app LIMIT {LARGEST_APPS}"
    surface = f"CASE WHEN app IN ({largest}) THEN 'app_' || app ELSE 'other' END AS app_group"
    return (
        f"SELECT n AS {PLACE}, epoch_ms(click_time) AS event_time_ms, {surface}, ip, app, device, os, channel, "
        f"is_attributed, epoch_ms(attributed_time) - epoch_ms(click_time) AS attributed_delay_ms FROM {numbered(table)}"
    )


TALKINGDATA = Dataset(
    "TalkingData",
    ("train",),
    lambda files: {"train": csv(files["train"], TALKING_COLUMNS, header=True)},
    _talking_rows,
    ("is_attributed",),
    "app_group",
    "ip",
)

SAMPLE = {
    "user": "BIGINT", "time_stamp": "BIGINT", "adgroup_id": "BIGINT", "pid": "VARCHAR", "nonclk": "TINYINT",
    "clk": "TINYINT",
}  # fmt: skip
AD = {**dict.fromkeys(["adgroup_id", "cate_id", "campaign_id", "customer", "brand"], "BIGINT"), "price": "DOUBLE"}
PROFILE = dict.fromkeys(
    [
        "userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level",
        "occupation", "new_user_class_level",
    ],
    "BIGINT",
)  # fmt: skip


LOG = {**dict.fromkeys(["user", "time_stamp"], "BIGINT"), "btag": "VARCHAR", "cate": "BIGINT", "brand": "BIGINT"}
REMEMBERED = 20
"""As many of a user's last deeds are kept with an impression."""


def _taobao(files: Mapping[str, list[Path]]) -> Tables:
    missing = ", nullstr = ['', 'NULL']"
    tables = {
        "raw_sample": csv(files["raw_sample"], SAMPLE, header=True),
        "ad_feature": csv(files["ad_feature"], AD, header=True, more=missing),
        "user_profile": csv(files["user_profile"], PROFILE, header=True, more=missing),
    }
    if "behavior_log" in files:
        tables["behavior_log"] = csv(files["behavior_log"], LOG, header=True, more=missing)
    return tables


def _done_before(log: str) -> tuple[str, str]:
    """Columns and joins of what a user put into the cart, marked or bought last, before the impression. Views, nineteen
    in twenty of the log, are left out: sorting them takes hundreds of gigabytes."""
    last = f"OVER (PARTITION BY user ORDER BY time_stamp, cate, brand, btag ROWS {REMEMBERED - 1} PRECEDING)"
    deeds = (
        f"SELECT user, time_stamp, list(cate) {last} AS recent_cates, list(brand) {last} AS recent_brands, "
        "row_number() OVER (PARTITION BY user, time_stamp ORDER BY cate DESC, brand DESC, btag DESC) AS of_moment "
        f"FROM (SELECT user, time_stamp, btag, coalesce(cate, 0) AS cate, coalesce(brand, 0) AS brand FROM {log} "
        "WHERE btag <> 'pv') QUALIFY of_moment = 1"
    )
    columns = "".join(f", coalesce(d.{name}, []::BIGINT[]) AS {name}" for name in ("recent_cates", "recent_brands"))
    return columns, f" ASOF LEFT JOIN ({deeds}) d ON s.user = d.user AND s.time_stamp > d.time_stamp"


def _taobao_rows(tables: Tables) -> str:
    ad, profile = (", ".join(name for name in list(columns)[1:]) for columns in (AD, PROFILE))
    more, joined = _done_before(tables["behavior_log"]) if "behavior_log" in tables else ("", "")
    return (
        f"SELECT s.n AS {PLACE}, s.time_stamp * 1000 AS event_time_ms, s.user AS user_id, s.adgroup_id, s.pid, "
        f"s.clk, {ad}, {profile}{more} "
        f"FROM {numbered(tables['raw_sample'])} s{joined} "
        f"LEFT JOIN {tables['ad_feature']} a ON s.adgroup_id = a.adgroup_id "
        f"LEFT JOIN {tables['user_profile']} p ON s.user = p.userid"
    )


TAOBAO = Dataset(
    "TaobaoAd",
    ("raw_sample", "ad_feature", "user_profile", "behavior_log"),
    _taobao,
    _taobao_rows,
    ("clk",),
    "pid",
    "user_id",
    optional=frozenset(["behavior_log"]),
)
