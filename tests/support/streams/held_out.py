"""Logs in public schemas that `exfm init` was not written for, made small: the shape of the files, not their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

BEGIN = datetime(2023, 3, 6, tzinfo=UTC)


class _Shown:
    """Who was shown what, and who clicked: users and ads differ in it."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.user, self.ad = self.rng.integers(0, rows // 15, rows), self.rng.integers(0, 60, rows)
        rate = 0.06 + 0.25 * (self.ad % 6 == 0) + 0.12 * (self.user % 4 == 0)
        self.clicked = self.rng.random(rows) < rate
        self.after_s = np.sort(self.rng.random(rows)) * rows * 20

    def at(self, n: int) -> datetime:
        return BEGIN + timedelta(seconds=float(self.after_s[n]))


def recommended_clicks(path: Path, rows: int) -> Path:
    """Content recommendations (Outbrain's clicks_train.csv): several ads of one display, one of them clicked."""
    shown, lines = _Shown(rows, 1), ["display_id,ad_id,clicked"]
    for n in range(rows):
        lines.append(f"{n // 4 + 1},{42_000 + shown.ad[n] * 37},{shown.clicked[n]:d}")
    path.write_text("\n".join(lines) + "\n")
    return path


def search_stream(path: Path, rows: int) -> Path:
    """Ads under a search (Avito's trainSearchStream.tsv): the label is empty where the ad was not contextual."""
    shown, lines = _Shown(rows, 2), ["SearchID\tAdID\tPosition\tObjectType\tHistCTR\tIsClick"]
    for n in range(rows):
        kind = 1 + n % 3
        label = f"{shown.clicked[n]:d}" if kind == 3 else ""
        history = f"{0.001 + 0.01 * (shown.ad[n] % 7):.6f}" if kind == 3 else ""
        lines.append(f"{n // 3 + 2}\t{11_441_863 + shown.ad[n]}\t{n % 3 * 6 + 1}\t{kind}\t{history}\t{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def bid_log(path: Path, rows: int) -> Path:
    """Impressions won in auctions (iPinYou, as it is usually prepared): times of 17 digits, tags of users, prices."""
    names = "click weekday hour bidid timestamp logtype ipinyouid useragent IP region city adexchange domain url urlid "
    names += "slotid slotwidth slotheight slotvisibility slotformat slotprice creative bidprice payprice keypage "
    names += "advertiser usertag"
    shown, lines = _Shown(rows, 3), ["\t".join(names.split())]
    for n in range(rows):
        at, user, ad = shown.at(n), int(shown.user[n]), int(shown.ad[n])
        tags = ",".join(str(10_006 + 57 * t) for t in range(user % 4)) or "null"
        cells: list[object] = [int(shown.clicked[n]), at.weekday(), f"{at.hour:02}", f"{n * 7919:032x}"]
        cells += [f"{at:%Y%m%d%H%M%S}{at.microsecond // 1000:03d}", 1, f"{user * 104_729:012x}", "windows_ie"]
        cells += [f"118.81.{user % 200}.*", 15 + user % 5, 16 + user % 11, 1 + n % 3, f"trqRTv{ad % 9}", f"{ad:08x}"]
        cells += ["null", f"mm_{ad % 13}", 300, 250, "FirstView", "Na", ad % 5 * 10, f"{ad:032x}", 300]
        cells += [20 + int(shown.rng.integers(0, 200)), "null", 1458 + ad % 2, tags]
        lines.append("\t".join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n")
    return path


def click_and_purchase(path: Path, rows: int) -> Path:
    """Clicks and purchases by numbered fields (Ali-CCP, flattened): columns whose names are numbers, no time."""
    fields = ["101", "121", "122", "124", "205", "206", "207", "216", "508", "301"]
    shown, lines = _Shown(rows, 4), ["click,purchase," + ",".join(fields)]
    for n in range(rows):
        bought = shown.clicked[n] and n % 5 == 0
        ids = [int(shown.user[n]) * 97 + 3, shown.user[n] % 4, shown.user[n] % 9, shown.user[n] % 2]
        ids += [int(shown.ad[n]) * 31 + 400, shown.ad[n] % 11, shown.ad[n] % 5, shown.ad[n] % 3, n % 17, 1 + n % 2]
        lines.append(",".join(map(str, [int(shown.clicked[n]), int(bought), *ids])))
    path.write_text("\n".join(lines) + "\n")
    return path


def logged_bandit(path: Path, rows: int) -> Path:
    """Decisions of a bandit with their propensities (Open Bandit): times with a zone, hashed features of users."""
    features = [f"user_feature_{k}" for k in range(4)] + [f"user-item_affinity_{k}" for k in range(6)]
    shown, lines = _Shown(rows, 5), [",timestamp,item_id,position,click,propensity_score," + ",".join(features)]
    for n in range(rows):
        at, user, ad = shown.at(n), int(shown.user[n]), int(shown.ad[n])
        hashed = [f"{(user % (5 + k)) * 2_654_435_761 % 2**32:08x}{k:024x}" for k in range(4)]
        affinity = [str(float((user + ad + k) % 5 == 0)) for k in range(6)]
        shown_at = at.isoformat(sep=" ", timespec="microseconds")
        cells = [str(n), shown_at, str(ad), str(1 + n % 3), f"{shown.clicked[n]:d}", f"{1 / (3 + ad % 3):.6f}"]
        lines.append(",".join([*cells, *hashed, *affinity]))
    path.write_text("\n".join(lines) + "\n")
    return path


def reviews(path: Path, rows: int) -> Path:
    """Reviews of products (Amazon's, JSON lines): stars for a label, texts that never repeat, records of pictures."""
    shown = _Shown(rows, 6)
    with path.open("w") as file:
        for n in range(rows):
            stars = 5.0 if shown.clicked[n] else float(1 + (int(shown.user[n]) + n) % 4)
            row = {
                "rating": stars,
                "title": f"{'Good' if n % 2 else 'So so'} {n}",
                "text": f"Bought it {n % 13} days ago, {'again' if n % 3 else 'never before'}; number {n}.",
                "images": [{"small_image_url": f"https://images.example/{n}.jpg"}] if n % 9 == 0 else [],
                "asin": f"B00{shown.ad[n]:07d}",
                "parent_asin": f"B01{shown.ad[n] // 2:07d}",
                "user_id": f"AG{shown.user[n]:022X}",
                "timestamp": int(shown.at(n).timestamp() * 1000),
                "helpful_vote": int(shown.rng.poisson(0.4)),
                "verified_purchase": bool(n % 5),
            }
            file.write(json.dumps(row) + "\n")
    return path


HELD_OUT: dict[str, Callable[[Path, int], Path]] = {
    "clicks_train.csv": recommended_clicks,
    "trainSearchStream.tsv": search_stream,
    "train.log.txt": bid_log,
    "click_and_purchase.csv": click_and_purchase,
    "logged_bandit.csv": logged_bandit,
    "reviews.jsonl": reviews,
}
