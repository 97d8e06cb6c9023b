"""Films and music: MovieLens (1M, 20M, 25M), Yambda (50m and larger)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from examples.datasets.published import DAYS_BEGIN_MS, PLACE, Dataset, Tables, csv, numbered
from streaming.errors import BadInput
from streaming.sources.tables.engine import file_literal, literal

LIKED_FROM = 4
MAIN_GENRES = ("Action", "Comedy", "Drama")
DOUBLE_COLON = ", delim = '::', quote = '', escape = '', encoding = 'latin-1'"


def _movielens(files: Mapping[str, list[Path]]) -> Tables:
    """Tables of MovieLens: 1M is `.dat` with two colons between columns; 20M and 25M are CSV."""
    rating = {"userId": "BIGINT", "movieId": "BIGINT", "rating": "DOUBLE", "timestamp": "BIGINT"}
    movie = dict.fromkeys(["movieId", "title", "genres"], "VARCHAR")
    dat = ".dat" in files["ratings"][0].suffixes
    more = DOUBLE_COLON if dat else ", quote = '\"', escape = '\"'"
    tables = {
        "ratings": csv(files["ratings"], rating, header=not dat, more=more),
        "movies": csv(files["movies"], movie, header=not dat, more=more),
    }
    if "users" in files:
        user = dict.fromkeys(["userId", "gender", "age", "occupation", "zip"], "VARCHAR")
        tables["users"] = csv(files["users"], user, header=not dat, more=more)
    return tables


def _movielens_rows(tables: Tables) -> str:
    main = ", ".join(literal(genre) for genre in MAIN_GENRES)
    first = "string_split(genres, '|')[1]"
    users = tables.get("users")
    more = "" if users is None else ", u.gender, u.age::BIGINT AS age, u.occupation::BIGINT AS occupation, u.zip"
    joined = "" if users is None else f" LEFT JOIN {users} u ON u.userId = r.userId::VARCHAR"
    return (
        f'SELECT r.n AS {PLACE}, r."timestamp" * 1000 AS event_time_ms, r.userId AS user_id, r.movieId AS movie_id, '
        f"(r.rating >= {LIKED_FROM})::TINYINT AS label, "
        f"CASE WHEN {first} IN ({main}) THEN lower({first}) ELSE 'other' END AS genre, "
        "string_split(genres, '|') AS genres, "
        "try_cast(regexp_extract(title, '\\((\\d{4})\\)\\s*$', 1) AS BIGINT) AS year"
        f"{more} FROM {numbered(tables['ratings'])} r "
        f"LEFT JOIN {tables['movies']} m ON m.movieId = r.movieId::VARCHAR{joined}"
    )


MOVIELENS = Dataset(
    "MovieLens",
    ("ratings", "movies", "users"),
    _movielens,
    _movielens_rows,
    ("label",),
    "genre",
    "user_id",
    optional=frozenset(["users"]),
)

PLAYED_FROM_PCT = 50
LIKES_WITHIN_S = 86_400


def _yambda(files: Mapping[str, list[Path]]) -> Tables:
    """Listens and likes, each of its own file or of the one that has all events."""
    found = {
        name: f"read_parquet([{', '.join(file_literal(path) for path in paths)}], hive_partitioning = false)"
        for name, paths in files.items()
    }
    if "multi_event" in found:
        for name, kind in (("listens", "listen"), ("likes", "like")):
            found.setdefault(name, f"(SELECT * FROM {found['multi_event']} WHERE event_type = {literal(kind)})")
    if missing := [name for name in ("listens", "likes") if name not in found]:
        raise BadInput(f"Yambda is listens.parquet and likes.parquet, or multi_event.parquet; no {missing[0]} is there")
    return found


def _yambda_rows(tables: Tables) -> str:
    """A listen is an impression. A like belongs to the latest listen of the same track by the same user before it, if
    that was within a day."""
    listens = numbered(tables["listens"])
    keys = f"SELECT DISTINCT uid, item_id FROM {tables['likes']}"
    able = (
        f"SELECT uid, item_id, timestamp, min(n) AS n FROM {listens} SEMI JOIN ({keys}) USING (uid, item_id) "
        "GROUP BY uid, item_id, timestamp"
    )
    liked = (
        "SELECT l.n, min(k.timestamp - l.timestamp) AS delay_s "
        f"FROM {tables['likes']} k ASOF JOIN ({able}) l "
        "ON k.uid = l.uid AND k.item_id = l.item_id AND k.timestamp >= l.timestamp "
        f"WHERE k.timestamp - l.timestamp <= {LIKES_WITHIN_S} GROUP BY l.n"
    )
    seconds = "least(played_ratio_pct, 100) * track_length_seconds / 100"
    return (
        f"SELECT i.n AS {PLACE}, {DAYS_BEGIN_MS} + i.timestamp::BIGINT * 1000 AS event_time_ms, "
        "i.uid AS user_id, i.item_id, CASE WHEN i.is_organic = 1 THEN 'organic' ELSE 'recommended' END AS channel, "
        "i.track_length_seconds, "
        f"(i.played_ratio_pct >= {PLAYED_FROM_PCT})::TINYINT AS played, ({seconds})::BIGINT AS played_delay_s, "
        "(y.n IS NOT NULL)::TINYINT AS liked, y.delay_s::BIGINT AS liked_delay_s "
        f"FROM {listens} i LEFT JOIN ({liked}) y ON y.n = i.n"
    )


YAMBDA = Dataset(
    "Yambda",
    ("listens", "likes", "multi_event"),
    _yambda,
    _yambda_rows,
    ("played", "liked"),
    "channel",
    "user_id",
    optional=frozenset(["listens", "likes", "multi_event"]),
)
