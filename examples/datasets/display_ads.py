"""Display and search advertising: Criteo (Kaggle and Terabyte), Avazu, KDD Cup 2012 track 2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from examples.datasets.published import DAY_MS, DAYS_BEGIN_MS, PLACE, Dataset, Tables, csv, numbered
from streaming.sources.tables.engine import literal, quoted
from streaming.sources.tables.in_order import ROW

TAB = ", delim = '\\t', quote = '', escape = '', nullstr = ''"
INTEGERS, CODES = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
CRITEO_DAYS = 7
APP_TRAFFIC = "85f751fd"
"""Avazu: the `site_id` of impressions that were shown in an app."""


def _criteo(files: Mapping[str, list[Path]]) -> Tables:
    columns = {"label": "TINYINT"} | dict.fromkeys(INTEGERS, "BIGINT") | dict.fromkeys(CODES, "VARCHAR")
    return {name: csv(paths, columns, header=False, more=TAB + ", filename = true") for name, paths in files.items()}


def _criteo_rows(tables: Tables, name: str, slot: str) -> str:
    features = ", ".join(map(quoted, [*INTEGERS, *(code for code in CODES if code != slot)]))
    return f"SELECT label AS click, coalesce({slot}, 'missing') AS {slot}, {features} FROM {tables[name]}"


CRITEO = Dataset(
    "Criteo Kaggle",
    ("train",),
    _criteo,
    lambda tables: _criteo_rows(tables, "train", "C17"),
    ("click",),
    "C17",
    None,
    time=lambda rows: f"{DAYS_BEGIN_MS} + ({ROW} * {CRITEO_DAYS * DAY_MS}::HUGEINT // {rows})::BIGINT",
)


def _terabyte_rows(tables: Tables) -> str:
    """With the day that the file's name has."""
    day = "coalesce(try_cast(regexp_extract(filename, 'day_(\\d+)[^/]*$', 1) AS INTEGER), 0) AS day"
    return _criteo_rows(tables, "day_*", "C13").replace("SELECT ", f"SELECT {day}, ", 1)


CRITEO_TERABYTE = Dataset(
    "Criteo Terabyte",
    ("day_*",),
    _criteo,
    _terabyte_rows,
    ("click",),
    "C13",
    None,
    time=lambda rows: (
        f"{DAYS_BEGIN_MS} + day * {DAY_MS} + (({ROW} - first_of_group) * {DAY_MS}::HUGEINT // rows_of_group)::BIGINT"
    ),
    group="day",
)

AVAZU_COLUMNS = {
    "id": "UBIGINT",
    "click": "TINYINT",
    "hour": "VARCHAR",
    "C1": "BIGINT",
    "banner_pos": "BIGINT",
    **dict.fromkeys(
        [
            "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
            "device_ip", "device_model",
        ],
        "VARCHAR",
    ),
    **dict.fromkeys(["device_type", "device_conn_type", *(f"C{n}" for n in range(14, 22))], "BIGINT"),
}  # fmt: skip
HOUR_MS = 3_600_000


def _avazu_rows(tables: Tables) -> str:
    kept = ", ".join(name for name in AVAZU_COLUMNS if name != "hour")
    surface = f"CASE WHEN site_id = {literal(APP_TRAFFIC)} THEN 'app' ELSE 'site' END AS surface"
    hour = "epoch_ms(strptime(hour, '%y%m%d%H')) AS hour_ms"
    return f"SELECT {kept}, {surface}, {hour} FROM {tables['train']}"


AVAZU = Dataset(
    "Avazu",
    ("train",),
    lambda files: {"train": csv(files["train"], AVAZU_COLUMNS, header=True)},
    _avazu_rows,
    ("click",),
    "surface",
    "device_ip",
    "id",
    time=lambda rows: f"hour_ms + (({ROW} - first_of_group) * {HOUR_MS} // rows_of_group)",
    group="hour_ms",
)

KDD_COLUMNS = [
    "click", "impression", "display_url", "ad_id", "advertiser_id", "depth", "position", "query_id", "keyword_id",
    "title_id", "description_id", "user_id",
]  # fmt: skip


KDD_TOKENS = {
    "queryid_tokensid": ("query_id", "query_tokens"),
    "purchasedkeywordid_tokensid": ("keyword_id", "keyword_tokens"),
    "titleid_tokensid": ("title_id", "title_tokens"),
    "descriptionid_tokensid": ("description_id", "description_tokens"),
}
"""Files of an id and its words, by number: the column of the id, and the bag that is made."""


def _kdd(files: Mapping[str, list[Path]]) -> Tables:
    columns = dict.fromkeys(KDD_COLUMNS, "BIGINT") | {"display_url": "UBIGINT"}
    tables = {"training": csv(files["training"], columns, header=False, more=TAB)}
    if "userid_profile" in files:
        profile = {"user_id": "BIGINT", "gender": "TINYINT", "age": "TINYINT"}
        tables["userid_profile"] = csv(files["userid_profile"], profile, header=False, more=TAB)
    for name in KDD_TOKENS:
        if name in files:
            tables[name] = csv(files[name], {"id": "BIGINT", "tokens": "VARCHAR"}, header=False, more=TAB)
    return tables


def _kdd_rows(tables: Tables) -> str:
    """An instance is as many rows as it had impressions, of which the first ones are its clicks."""
    kept = ", ".join(f"r.{name}" for name in KDD_COLUMNS if name not in ("click", "impression"))
    profile = tables.get("userid_profile")
    more = "" if profile is None else ", p.gender, p.age"
    joined = "" if profile is None else f" LEFT JOIN (SELECT DISTINCT ON (user_id) * FROM {profile}) p USING (user_id)"
    for name, (column, bag) in KDD_TOKENS.items():
        if (table := tables.get(name)) is not None:
            tokens = f"SELECT DISTINCT ON (id) id, string_split(tokens, '|')::BIGINT[] AS {bag} FROM {table}"
            more += f", {bag}"
            joined += f" LEFT JOIN ({tokens}) {bag}_of ON r.{column} = {bag}_of.id"
    return (
        f"SELECT n * {1 << 20} + k AS {PLACE}, (k < click)::TINYINT AS clicked, 'depth_' || depth AS page, "
        f"{kept}{more} "
        f"FROM (SELECT *, unnest(range(impression)) AS k FROM {numbered(tables['training'])}) r{joined}"
    )


KDD12 = Dataset(
    "KDD Cup 2012 track 2",
    ("training", "userid_profile", *KDD_TOKENS),
    _kdd,
    _kdd_rows,
    ("clicked",),
    "page",
    "user_id",
    optional=frozenset(["userid_profile", *KDD_TOKENS]),
    time=lambda rows: f"{DAYS_BEGIN_MS} + {ROW} * 1000",
)
