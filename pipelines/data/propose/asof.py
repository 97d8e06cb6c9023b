"""As-of features: rates of user, item and their crosses that pay on the first rows of the file, judged by a small
regression with and without them; none over a label that was set in hindsight."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.data.findings import Finding, Rules, percent
from pipelines.data.profile.file import FileProfile
from pipelines.data.propose.features import SMALL, Feature
from pipelines.data.propose.labels import Label
from pipelines.data.propose.regressions import ProgressiveRows, progressive_losses
from pipelines.data.propose.roles import Roles
from pipelines.data.propose.times import EventTimeColumn
from pipelines.report.table import TextTable
from streaming.asof.features import AsOfState, LabelEvents
from streaming.schema import AsOf, AsOfFeature, Column, RowSchema, Task
from streaming.sources.tables.engine import quoted
from streaming.sources.tables.in_order import ROW

RULES = Rules("""
warn  init.label-in-hindsight  label `{column}`
    {same} of {repeats:,} rows that repeat a pair of `{user}` and `{item}` have the label of the pair's row before, by
    chance {chance}: it was set for the pair, in hindsight, and the rows before know it before it happened
    -> no as-of feature of {task} is proposed: its gain could not exist when the ad is shown; a label of each row's own
    would allow them
""")

FIRST_ROWS, FIRST_VALUES = 200_000, 4_000_000
"""Rows that are looked at, and rows times candidates."""

MOST_SMALL = 16
"""Columns that user and item are crossed with: vertical, and the first of the file."""

MOST = 6
LEAST_GAIN, LEAST_ERRORS = 0.002, 3.0
"""A rate pays from .2 % of NE on, and three standard errors of it. Each costs two columns of the lake, memory for every
key and a thirtieth of augmentation's time; a student's seeds differ by about as much."""

MORE_KEYS = 1.1
"""A cross with fewer keys than so many times those of its first column is that column again: the second follows from
it."""

HALF_LIVES = {"recent": 600.0, "hour": 3600.0}
SAME, LEAST_UNLIKE = 0.5, 20
"""Labels of pairs are set in hindsight where at least half of the disagreement that chance would bring is absent, of so
many rows at least."""


class AsOfRate(NamedTuple):
    """A rate that was tried. `alone`: NE with it and no other; `before` and `after`: NE without and with it beside
    those that were taken before it; None where it was not taken."""

    name: str
    by: tuple[str, ...]
    task: str
    half_life_s: float | None
    alone: float = 0.0
    before: float | None = None
    after: float | None = None

    @property
    def setting(self) -> dict[str, Any]:
        by = self.by[0] if len(self.by) == 1 else list(self.by)
        half_life = {} if self.half_life_s is None else {"half_life_s": round(self.half_life_s)}
        return {"name": self.name, "by": by, "rate": self.task} | half_life

    def as_json(self) -> dict[str, Any]:
        ne = {"ne_alone": self.alone, "ne_before": self.before, "ne_after": self.after}
        return self.setting | ne | {"proposed": self.after is not None}

    @property
    def key(self) -> str:
        """Words for the key.

        >>> AsOfRate("user_recent_rate", ("user",), "ctr", 600).key
        'user, half-life 600 s'
        """
        return " × ".join(self.by) + ("" if self.half_life_s is None else f", half-life {self.half_life_s:g} s")


class ProposedAsOf(NamedTuple):
    """Rates that were tried, those that are proposed first, in the order in which they were taken. `rows`: how many
    were looked at; `without`: NE without any."""

    rates: tuple[AsOfRate, ...] = ()
    rows: int = 0
    without: float = 0.0
    findings: tuple[Finding, ...] = ()

    @property
    def taken(self) -> list[AsOfRate]:
        return [rate for rate in self.rates if rate.after is not None]

    @property
    def items(self) -> list[tuple[dict[str, Any], str]]:
        """The features, and the evidence of each."""
        of = [f" of a regression on the first {self.rows:,} rows, without it and with it", *[""] * len(self.rates)]
        return [
            (rate.setting, f"NE {ne_text(rate.before)} -> {ne_text(rate.after)}{words}")
            for rate, words in zip(self.taken, of, strict=False)
        ]

    def renamed(self, tasks: dict[str, str], columns: Collection[str]) -> ProposedAsOf:
        """The same with the tasks' names of a stream, and without keys of columns that it has not."""
        there = [rate for rate in self.rates if set(rate.by) <= {*columns, "vertical"}]
        return self._replace(rates=tuple(rate._replace(task=tasks[rate.task]) for rate in there))

    def table(self) -> TextTable:
        """The evidence: NE with each alone, and with each that is proposed beside those above it."""
        title = f"as-of rates: NE of a regression on the first {self.rows:,} rows, {ne_text(self.without)} without"
        head = ["rate of", "NE with it alone", "beside those above", "gain %", "feature"]
        return TextTable(title, head, [list(self._row(rate)) for rate in self.rates])

    def _row(self, rate: AsOfRate) -> Iterator[str | None]:
        yield from (rate.key, ne_text(rate.alone))
        if rate.before is None or rate.after is None:
            yield from (None, f"{100 * (1 - rate.alone / self.without):.2f}", "left out")
        else:
            yield from (ne_text(rate.after), f"{100 * (1 - rate.after / rate.before):.2f}", rate.name)


def ne_text(ne: float | None) -> str:
    """
    >>> ne_text(0.84337), ne_text(1.00204)
    ('.8434', '1.0020')
    """
    return f"{ne:.4f}".removeprefix("0")


class FirstRows(NamedTuple):
    """The first N rows in order of time. `codes`: each column's values, (N,) int64 from 0 on, -1 where null. `label`:
    (N,) float64, NaN where it is unknown. `labelled`: (N,) int64, when the label comes, ms."""

    time: np.ndarray
    label: np.ndarray
    labelled: np.ndarray
    codes: dict[str, np.ndarray]


def find_asof(
    file: FileProfile,
    time: EventTimeColumn,
    back: int,
    labels: Sequence[Label],
    roles: Roles,
    features: Sequence[Feature],
) -> ProposedAsOf:
    """Rates of the first label that depends on no other one. `back`: rows of the file that are earlier than the row
    before. Nothing is proposed for rows without times: what was known of a key when a row was shown is not known then.
    """
    label = next(label for label in labels if label.given is None)
    keys = {f.source: f.name for f in features if f.kind == "sparse" and f.column.get("type") in (None, "string")}
    user, item = (keys.get(guess.column or "") for guess in (roles.user, roles.item))
    if time.guess.column is None or user is item is None:
        return ProposedAsOf()
    small = {} if roles.vertical.column is None else {"vertical": roles.vertical.column}
    for source, name in keys.items():
        if (file.columns[source].distinct or 0) <= SMALL and name not in (user, item):
            small[name] = source
    small = dict(list(small.items())[:MOST_SMALL])
    columns = {name: source for source, name in keys.items() if name in (user, item)} | small
    crosses = [(one, other) for one in (user, item) if one is not None for other in small]
    rows = _first_rows(file, time, back, label, columns, FIRST_VALUES // (len(crosses) + 2 + len(HALF_LIVES)))
    known = rows.label[~np.isnan(rows.label)]
    if not 0 < known.sum() < len(known):
        return ProposedAsOf()
    if user is not None and item is not None and (odd := _in_hindsight(label, user, item, rows)):
        return ProposedAsOf(findings=(odd,))
    single = [AsOfRate("", (one,), label.task, None) for one in (user, item) if one is not None]
    recent = [(word, AsOfRate("", (user,), label.task, half)) for word, half in HALF_LIVES.items() if user is not None]
    crossed = [AsOfRate("", by, label.task, None) for by in crosses if _has_more_keys(*(rows.codes[c] for c in by))]
    named = [("", rate) for rate in (*single, *crossed)] + recent
    taken = {feature.name for feature in features}
    rates = [rate._replace(name=_free_name([*rate.by, word], taken)) for word, rate in named]
    return _that_pay(rates, label, rows)


def _free_name(words: Sequence[str], taken: Collection[str]) -> str:
    """
    >>> _free_name(["user_id", "recent"], {"user_id"}), _free_name(["user", ""], {"user_rate_shown"})
    ('user_id_recent_rate', 'user_rate_')
    """
    name = "_".join([*filter(None, words), "rate"])
    while name in taken or f"{name}_shown" in taken:
        name += "_"
    return name


def _first_rows(
    file: FileProfile, time: EventTimeColumn, back: int, label: Label, columns: dict[str, str], most: int
) -> FirstRows:
    sqls = [f"{file.columns[source].sql} AS {quoted(name)}" for name, source in columns.items()]
    selected = f"({time.sql})::BIGINT AS t, ({label.sql})::DOUBLE AS y, ({label.delay_ms_sql})::DOUBLE AS delay"
    order = f"ORDER BY t, {ROW} " if back else ""
    table = file.engine.arrow(
        f"SELECT {', '.join([selected, *sqls])} FROM {file.relation} {order}LIMIT {min(FIRST_ROWS, most)}"
    )
    shown, y, delay = (table[name].to_numpy() for name in ("t", "y", "delay"))
    y = np.where((y == 1) & (delay > 1000 * label.window_s), 0.0, y)  # it comes too late, as in a run
    delay = np.where(y == 1, np.maximum(delay, 0.0), 0.0)
    codes = {}
    for name in columns:
        values = table[name].combine_chunks().dictionary_encode()
        codes[name] = values.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return FirstRows(shown, y, shown + delay.astype(np.int64), codes)


def _in_hindsight(label: Label, user: str, item: str, rows: FirstRows) -> Finding | None:
    """Compare the labels of pairs that come again with chance."""
    known = ~np.isnan(rows.label) & (rows.codes[user] >= 0) & (rows.codes[item] >= 0)
    pair = (rows.codes[user] * (rows.codes[item].max() + 1) + rows.codes[item])[known]
    order = np.argsort(pair, kind="stable")  # of a pair in order of time
    pair, y = pair[order], rows.label[known][order]
    again = pair[1:] == pair[:-1]
    if not again.any():
        return None
    before, now = y[:-1][again], y[1:][again]
    same, repeats = float((before == now).mean()), len(now)
    chance = float(before.mean() * now.mean() + (1 - before.mean()) * (1 - now.mean()))
    if (1 - chance) * repeats < LEAST_UNLIKE or same - chance < SAME * (1 - chance):
        return None
    about = {"column": label.guess.column, "user": user, "item": item, "task": label.task, "repeats": repeats}
    return RULES("init.label-in-hindsight", **about, same=percent(same), chance=percent(chance))


def _has_more_keys(one: np.ndarray, other: np.ndarray) -> bool:
    """True if crosses of two columns have more values than the first."""
    crossed = (one + 1) * (other.max() + 2) + other + 1
    return len(np.unique(crossed)) > MORE_KEYS * len(np.unique(one))


def _that_pay(rates: Sequence[AsOfRate], label: Label, rows: FirstRows) -> ProposedAsOf:
    """Take the best rate as long as one pays; of those nearly as good as the best, one with the shortest key. One that
    does not pay is not tried again: beside more rates it would say less."""
    known = ~np.isnan(rows.label)
    ids, count = [np.zeros(known.sum(), np.int64)], 1
    for codes in rows.codes.values():
        ids.append(codes[known] + 1 + count)
        count += int(codes.max()) + 2
    window_ms = round(1000 * label.window_s)
    shown = rows.time[known]
    stream = ProgressiveRows(np.stack(ids, axis=1), rows.label[known], shown, shown + window_ms)
    inputs = _inputs(rates, label, rows)[known]
    without = 0.0
    tried, open_, taken = list(rates), list(range(len(rates))), list[int]()
    while open_ and len(taken) < MOST:
        own = np.concatenate([np.zeros((len(inputs), 1, 2), np.float32), inputs[:, open_]], axis=1)
        losses = progressive_losses(stream, inputs[:, taken].reshape(len(inputs), -1), own)
        if not taken:
            without = float(losses.ne[0])
            tried = [rate._replace(alone=float(ne)) for rate, ne in zip(tried, losses.ne[1:], strict=True)]
        gain, error = losses.gain[1:], losses.error[1:]
        pays = (gain >= LEAST_GAIN) & (gain >= LEAST_ERRORS * error)
        if not pays.any():
            break
        simplest = min(len(rates[n].by) for n, near in zip(open_, gain > gain.max() - LEAST_GAIN, strict=True) if near)
        able = pays & np.array([len(rates[n].by) == simplest for n in open_])
        place = int(np.argmax(np.where(able, gain, -1)))
        best, ne = open_[place], losses.ne
        tried[best] = tried[best]._replace(before=float(ne[0]), after=float(ne[1 + place]))
        taken.append(best)
        open_ = [rate for rate, paid in zip(open_, pays, strict=True) if paid and rate != best]
    in_order = [*taken, *sorted((n for n in range(len(tried)) if n not in taken), key=lambda n: tried[n].alone)]
    return ProposedAsOf(tuple(tried[n] for n in in_order), len(rows.time), without)


def _inputs(rates: Sequence[AsOfRate], label: Label, rows: FirstRows) -> np.ndarray:
    """Inputs that a model reads of each rate, its logit and the logarithm of its impressions, (N, rates, 2) float32, of
    mean 0 and deviation 1: computed as a run does."""
    schema = RowSchema(
        columns=tuple(Column(name=name, nullable=True) for name in rows.codes if name != "vertical"),
        tasks=(Task(name=label.task, window_s=label.window_s),),
        asof=AsOf(features=tuple(AsOfFeature(**rate.setting) for rate in rates)),
    )
    positive = np.flatnonzero(rows.label == 1)
    come = LabelEvents(positive, np.zeros(len(positive), np.int64), rows.labelled[positive], rows.time[positive])
    keys = pa.record_batch({name: pa.array(codes, mask=codes < 0) for name, codes in rows.codes.items()})
    columns = AsOfState(schema).advance(keys, rows.time, come)
    values = np.stack([column.to_numpy() for column in columns], axis=1).reshape(len(rows.time), len(rates), 2)
    rate, shown = values[..., 0].astype(np.float64), values[..., 1]
    inputs = np.stack([np.log(rate / (1 - rate)), np.log1p(shown)], axis=2)
    inputs -= inputs.mean(0)
    inputs /= np.maximum(inputs.std(0), 1e-6)
    return inputs.astype(np.float32)
