"""Small files in the formats in which public data sets are published, with invented rows."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 4000


def _lines(path: Path, rows: Iterable[Iterable[Any]], separator: str = ",", encoding: str = "utf-8") -> None:
    text = "".join(separator.join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows)
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def _clicked(rng: np.random.Generator, ad: np.ndarray) -> np.ndarray:
    return (rng.random(len(ad)) < np.where(ad % 5 == 0, 0.4, 0.1)).astype(int)


def _criteo_rows(seed: int, rows: int) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**32, (26, 30), dtype=np.uint64)
    taken = rng.integers(0, 30, (rows, 26))
    taken[:, [12, 16]] %= 3
    clicked, missing = _clicked(rng, taken[:, 0]), rng.random((rows, 39)) < 0.1
    numbers = np.floor(rng.lognormal(1, 2, (rows, 13))).astype(int) - 1
    return [
        [
            clicked[n],
            *(None if gone else value for gone, value in zip(missing[n], numbers[n], strict=False)),
            *(None if missing[n, 13 + k] else f"{codes[k, taken[n, k]]:08x}" for k in range(26)),
        ]
        for n in range(rows)
    ]


def criteo(folder: Path) -> None:
    _lines(folder / "train.txt", _criteo_rows(0, ROWS), "\t")


def criteo_terabyte(folder: Path) -> None:
    for day in (0, 1, 10):
        _lines(folder / f"day_{day}{'.gz' if day else ''}", _criteo_rows(day, ROWS // 2), "\t")


def avazu(folder: Path) -> None:
    rng, n = np.random.default_rng(0), np.arange(ROWS)
    header = (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    )
    ad, in_app = rng.integers(0, 30, ROWS), rng.random(ROWS) < 0.4
    clicked = _clicked(rng, ad)
    rows: list[list[Any]] = [header.split(",")]
    for k in n:
        site = "85f751fd" if in_app[k] else f"{ad[k] * 7919:08x}"
        texts = [site, f"{ad[k] % 4:08x}", "28905ebd", f"{k % 20:08x}", "7801e8d9", "07d7df22", f"{k % 300:08x}"]
        anonymous = [15_000 + ad[k], 320, 50, 1700, k % 4, 35, -1, 79 + k % 3]
        hour = f"1410{21 + k // 2400}{k // 100 % 24:02}"
        rows.append(
            [
                10**19 + int(k),
                clicked[k],
                hour,
                1005,
                k % 2,
                *texts,
                f"{k % 251:08x}",
                f"{k % 40:08x}",
                1,
                0,
                *anonymous,
            ]
        )
    _lines(folder / "train.gz", rows)


def kdd12(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows: list[list[Any]] = []
    for _ in range(ROWS // 2):
        shown, ad = int(rng.integers(1, 4)), int(rng.integers(0, 40))
        clicks = int(rng.random() < (0.5 if ad % 5 == 0 else 0.15)) * int(rng.integers(1, shown + 1))
        depth = int(rng.integers(1, 4))
        ids = [int(rng.integers(0, 50)) for _ in range(4)]
        url = 12_057_878_999_086_460_853
        rows.append([clicks, shown, url, 20_000_000 + ad, 27_000 + ad % 6, depth, 1, *ids, int(rng.integers(0, 90))])
    _lines(folder / "training.txt", rows, "\t")
    _lines(folder / "userid_profile.txt", [[user, user % 3, 1 + user % 6] for user in range(80)], "\t")
    _lines(folder / "queryid_tokensid.txt", [[k, f"{12_731 + k}|{k % 7}"] for k in range(45)], "\t")


def talkingdata(folder: Path) -> None:
    rng = np.random.default_rng(0)
    header = "ip,app,device,os,channel,click_time,attributed_time,is_attributed"
    app = rng.integers(0, 14, ROWS)
    installed = _clicked(rng, app)
    at = np.datetime64("2017-11-06T14:32:21") + np.sort(rng.integers(0, 80_000, ROWS)).astype("timedelta64[s]")
    rows: list[list[Any]] = [header.split(",")]
    for n in range(ROWS):
        shown = str(at[n]).replace("T", " ")
        later = str(at[n] + np.timedelta64(60 + n % 3000, "s")).replace("T", " ") if installed[n] else None
        rows.append([n % 170, app[n], 1, n % 30, 100 + n % 40, shown, later, installed[n]])
    _lines(folder / "train.csv", rows)


def taobao(folder: Path) -> None:
    rng = np.random.default_rng(0)
    ad = rng.integers(0, 60, ROWS)
    clicked, at = _clicked(rng, ad), 1_494_000_000 + rng.permutation(8 * 86_400)[:ROWS]
    rows: list[list[Any]] = [["user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk"]]
    rows += [
        [n % 150, at[n], ad[n], ["430548_1007", "430539_1007"][n % 2], 1 - clicked[n], clicked[n]] for n in range(ROWS)
    ]
    _lines(folder / "raw_sample.csv", rows)
    ads: list[list[Any]] = [["adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"]]
    ads += [[k, k % 12, k + 500, k % 20, "NULL" if k % 4 == 0 else k % 9, 1.5 * k + 1] for k in range(60)]
    _lines(folder / "ad_feature.csv", ads)
    names = (
        "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,"
        "new_user_class_level "
    )
    users: list[list[Any]] = [names.split(",")]
    users += [[k, k % 90, k % 12, 1 + k % 2, k % 6, None if k % 2 else 2, 1 + k % 3, k % 2, None] for k in range(140)]
    _lines(folder / "user_profile.csv", users)
    done: list[list[Any]] = [["user", "time_stamp", "btag", "cate", "brand"]]
    for n in range(2 * ROWS):
        when = 1_494_000_000 + int(rng.integers(0, 8 * 86_400))
        done.append([int(rng.integers(0, 130)), when, ["pv", "cart", "fav", "buy"][n % 4], n % 12, n % 9])
    _lines(folder / "behavior_log.csv", done)


def _rated(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    movie = rng.integers(1, 80, ROWS)
    return movie, np.where(movie % 3 == 0, rng.integers(4, 6, ROWS), rng.integers(1, 5, ROWS))


def _films(quoted: bool) -> list[list[Any]]:
    kinds = ["Action|Sci-Fi", "Comedy", "Drama|Romance", "Horror"]
    quote = '"' if quoted else ""
    return [[k, f"{quote}Misérables, Les {k} ({1930 + k}){quote}", kinds[k % 4]] for k in range(1, 80)]


def movielens_1m(folder: Path) -> None:
    rng = np.random.default_rng(0)
    movie, stars = _rated(rng)
    at = 956_703_932 + rng.permutation(10**6)[:ROWS]
    _lines(folder / "ratings.dat", [[1 + n % 120, movie[n], stars[n], at[n]] for n in range(ROWS)], "::")
    _lines(folder / "movies.dat", _films(False), "::", "latin-1")
    users = [[k, "FM"[k % 2], [1, 18, 25, 35][k % 4], k % 21, f"{k * 37:05}"] for k in range(1, 121)]
    _lines(folder / "users.dat", users, "::")


def movielens_25m(folder: Path) -> None:
    rng = np.random.default_rng(0)
    movie, stars = _rated(rng)
    at = 1_147_880_044 + rng.permutation(10**6)[:ROWS]
    rows: list[list[Any]] = [["userId", "movieId", "rating", "timestamp"]]
    rows += [[1 + n % 120, movie[n], f"{stars[n] - 0.5 * (n % 2 and stars[n] < 4):.1f}", at[n]] for n in range(ROWS)]
    _lines(folder / "ratings.csv", rows)
    _lines(folder / "movies.csv", [["movieId", "title", "genres"], *_films(True)])


def yambda(folder: Path) -> None:
    rng = np.random.default_rng(0)
    uid, item = np.sort(rng.integers(0, 100, ROWS)), rng.integers(0, 60, ROWS)
    at = np.concatenate([np.sort(5 * rng.integers(0, 5_000_000, count)) for count in np.bincount(uid)])
    share = np.where(item % 3 == 0, rng.integers(60, 101, ROWS), rng.integers(0, 70, ROWS))
    u32 = {"uid": pa.array(uid, pa.uint32()), "timestamp": pa.array(at, pa.uint32())}
    u32["item_id"] = pa.array(item, pa.uint32())
    more = {
        "is_organic": pa.array(rng.integers(0, 2, ROWS), pa.uint8()),
        "played_ratio_pct": pa.array(share, pa.uint16()),
        "track_length_seconds": pa.array(120 + 5 * (item % 20), pa.uint32()),
    }
    pq.write_table(pa.table(u32 | more), folder / "listens.parquet")
    liked = np.flatnonzero((item % 3 == 0) & (rng.random(ROWS) < 0.3))
    likes = pa.table(u32 | {"is_organic": more["is_organic"]}).take(liked)
    likes = likes.set_column(1, "timestamp", pa.array(at[liked] + 30, pa.uint32()))
    pq.write_table(likes, folder / "likes.parquet")


def yambda_of_events(folder: Path) -> None:
    """The same in one file of all events."""
    yambda(folder)
    listens, likes = (folder / f"{name}.parquet" for name in ("listens", "likes"))
    events = [(pq.read_table(listens), "listen"), (pq.read_table(likes), "like"), (pq.read_table(likes), "unlike")]
    tables = [table.append_column("event_type", pa.array([kind] * table.num_rows)) for table, kind in events]
    pq.write_table(pa.concat_tables(tables, promote_options="default"), folder / "multi_event.parquet")
    listens.unlink()
    likes.unlink()


PUBLISHED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "criteo": ("criteo", criteo),
    "criteo-terabyte": ("criteo-terabyte", criteo_terabyte),
    "avazu": ("avazu", avazu),
    "kdd12": ("kdd12", kdd12),
    "talkingdata": ("talkingdata", talkingdata),
    "taobao": ("taobao", taobao),
    "movielens-1m": ("movielens", movielens_1m),
    "movielens-25m": ("movielens", movielens_25m),
    "yambda": ("yambda", yambda),
}
"""Name -> the data set, and what writes it into a folder."""
