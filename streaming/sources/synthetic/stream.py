"""The synthetic ads stream: impressions and feedback in the order of their arrival, faults included, with the truth.

Impression k of n arrives at a time that grows with k (busier by day); its event happened up to `jitter_s` before. A
click or conversion is a record of its own, with its own time and jitter, held back until the stream gets there. Memory
holds the world, one chunk, and feedback under way (its rate times its delay), however long the stream. Where the
stream knows what users clicked last, a chunk happens in pieces, so that a click of one is known in the next.

Where several ads compete for a request, all candidates are impressions of the stream, one after the other, of one user,
moment and place; the log shows one of them at random, with known propensities, and only that one can be clicked. It
prefers dear ads, and explores with ε:

    score_k = ln(bid of candidate k)                     p_k = (1 − ε) softmax(score)_k + ε / K
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.errors import BadInput
from streaming.schema import Column, RowSchema, Task
from streaming.sources.chunk import Chunk, HeldRows, PlayedStream
from streaming.sources.synthetic.delays import Delays, click_in_time, conversion_in_time
from streaming.sources.synthetic.malformed import Encoding, Malformed
from streaming.sources.synthetic.population import ID_BITS, scramble
from streaming.sources.synthetic.recent import RecentClicks, lists
from streaming.sources.synthetic.truth import TRUTH_SCHEMA
from streaming.sources.synthetic.world import AXES, DEVICES, INTEREST_EDGES, POSITIONS, Meetings, World
from streaming.sources.synthetic.world_config import FOUR_VERTICALS, GeneratorConfig, Vertical

__all__ = ["FOUR_VERTICALS", "INTERESTS", "GeneratedStream", "GeneratorConfig", "Vertical", "generated_columns"]

SHOWN = "shown"
"""The task whose label says which candidate was shown; clicks are given it."""

REQUEST, PROPENSITY = "request_id", "propensity"

INTERESTS = tuple(f"interest_{axis}" for axis in range(AXES))
"""What users really like, each latent axis in fifths: no real stream holds that."""

RECENT = "recent_categories"
"""Categories of the ads that a user clicked last, as far as a log knew them by then, the most recent last."""

_TASKS = ("ctr", "cvr", SHOWN)

_WHY_SHOWN = f" (several ads compete for a request: ctr is given {SHOWN}, of the same window)"


def generated_columns(config: GeneratorConfig) -> tuple[Column, ...]:
    """The raw feature columns that the stream can have. No real stream has those in `INTERESTS`.

    >>> [column.name for column in generated_columns(GeneratorConfig())][:4]
    ['user_id', 'ad_id', 'advertiser_id', 'category_id']
    """
    bounded = {
        "user_id": 2**ID_BITS,
        "ad_id": 2**ID_BITS,
        "advertiser_id": config.advertisers,
        "category_id": config.categories,
        "audience_id": config.segments,
        "hour": 24,
        "position": POSITIONS,
        "device": DEVICES,
    }
    return (
        *(Column(name=name, minimum=0, maximum=bound - 1) for name, bound in bounded.items()),
        *(Column(name=name, type="float32") for name in ("bid", "session_minutes", "ad_age_hours")),
        Column(name=RECENT, type="list<int64>"),
        *(Column(name=name, minimum=0, maximum=len(INTEREST_EDGES)) for name in INTERESTS),
        *((Column(name=REQUEST), Column(name=PROPENSITY, type="float32")) if config.candidates > 1 else ()),
    )


class GeneratedStream(PlayedStream):
    """The synthetic stream of `config`, for tasks `ctr` and `cvr` (a conversion, given the click); if several ads
    compete for a request also for `shown`, the condition of clicks.

    windows_s: attribution window of each task wanted, seconds; `cvr` may be left out.
    columns: names of the columns wanted, in their order; all of `generated_columns` by default.
    encoding: of malformed messages, as the topics' codec.
    in_time: per vertical, the factors from p_ctr to p_settled_ctr and from p_cvr to p_settled_cvr.
    Raises BadInput for a task or column that the stream does not have.

    >>> config = GeneratorConfig(impressions=1000, users=500, ads=50)
    >>> stream = GeneratedStream(config, {"ctr": 3600.0, "cvr": 21600.0})
    >>> sum(chunk.truth.num_rows for chunk in stream.chunks(chunk_rows=300))
    1000
    """

    def __init__(
        self,
        config: GeneratorConfig,
        windows_s: Mapping[str, float],
        *,
        columns: Sequence[str] | None = None,
        encoding: Encoding = "arrow",
    ) -> None:
        offered = _TASKS if config.candidates > 1 else _TASKS[:2]
        needed = {"ctr", SHOWN} & set(offered)
        if set(windows_s) - set(offered) or needed - set(windows_s):
            raise BadInput(
                f"the generated stream has tasks {' and '.join(offered)}, and needs a window for "
                f"{' and '.join(sorted(needed))}{_WHY_SHOWN if SHOWN in needed else ''}; asked: "
                f"{', '.join(windows_s) or 'none'}; name the tasks so, or record a stream of your own"
            )
        self.config = config
        self.schema_columns = generated_columns(config)
        by_name = {column.name: column for column in self.schema_columns}
        wanted = tuple(by_name) if columns is None else tuple(columns)
        if absent := [name for name in wanted if name not in by_name]:
            raise BadInput(f"the generated stream has no column {', '.join(absent)}; it has {', '.join(by_name)}")
        if SHOWN in needed and windows_s[SHOWN] != windows_s["ctr"]:
            raise BadInput(
                f"{SHOWN} has a window of {windows_s[SHOWN]:g} s, ctr of {windows_s['ctr']:g} s; give both the same, "
                "so that candidates that were not shown are rows of both"
            )
        conditions = {"cvr": "ctr"} | ({"ctr": SHOWN} if config.candidates > 1 else {})
        self.schema = RowSchema(
            columns=tuple(by_name[name] for name in wanted),
            tasks=tuple(
                Task(name=name, window_s=windows_s[name], given=conditions.get(name))
                for name in _TASKS
                if name in windows_s
            ),
        )
        self._encoding: Encoding = encoding
        reported, w_ctr, w_cvr = 1 - config.lost_rate, windows_s["ctr"], windows_s.get("cvr", windows_s["ctr"])
        self.in_time = (
            np.array([reported * click_in_time(v, w_ctr) for v in config.verticals], np.float32),
            np.array([reported * conversion_in_time(v, w_ctr, w_cvr) for v in config.verticals], np.float32),
        )

    @property
    def keeps_recent(self) -> bool:
        """True if recent clicks are a column or influence anything."""
        return bool(self.config.recent_taste) or any(column.name == RECENT for column in self.schema.columns)

    @property
    def rows(self) -> int:
        """Number of impressions, without duplicates."""
        return self.config.impressions

    def chunks(self, chunk_rows: int = 8192) -> Iterator[Chunk]:
        """The whole stream, from its start: the same bytes each time for the same `chunk_rows`.

        A chunk holds `chunk_rows` impressions, the duplicates that come with them, and the feedback that arrives in
        its time. After the last impression, chunks of up to `chunk_rows` late records follow.
        """
        yield from _Playback(self, self._encoding).chunks(chunk_rows)


def generated_stream(config: GeneratorConfig, schema: RowSchema, *, encoding: Encoding = "arrow") -> GeneratedStream:
    """The synthetic stream with the columns and tasks of `schema`. Raises BadInput where it has others."""
    windows_s = {task.name: task.window_s for task in schema.tasks}
    conditions = {task.name: task.given for task in schema.tasks}
    if config.candidates > 1 and conditions.get("ctr") != SHOWN:
        raise BadInput(
            f"{config.candidates} candidates compete for a request, and ctr is given "
            f"{conditions.get('ctr') or 'nothing'}; write `given: {SHOWN}`, or what was not shown counts as not clicked"
        )
    return GeneratedStream(config, windows_s, columns=[column.name for column in schema.columns], encoding=encoding)


class _Playback:
    """One pass over the stream. Times are milliseconds since its start; those in batches, since 1970."""

    def __init__(self, stream: GeneratedStream, encoding: Encoding) -> None:
        self._config, self._schema = stream.config, stream.schema
        self._in_time = stream.in_time
        self._world = World(stream.config)
        self._recent = RecentClicks(stream.config, self._world.users) if stream.keeps_recent else None
        self._delays = Delays(stream.config.verticals)
        self._rng = np.random.Generator(np.random.SFC64([stream.config.seed, 2]))
        self._malformed = Malformed(stream.schema, encoding)
        self._verticals = pa.array([v.name for v in stream.config.verticals], pa.string())
        self._tasks = pa.array(_TASKS, pa.string())
        self._repeated = HeldRows(stream.schema.impression)
        self._feedback = HeldRows(stream.schema.feedback)
        self._choosing = np.random.default_rng([stream.config.seed, 6])
        self._salt = int(np.random.default_rng([stream.config.seed, 3]).integers(2**62))

    def chunks(self, chunk_rows: int) -> Iterator[Chunk]:
        whole = max(chunk_rows - chunk_rows % self._config.candidates, self._config.candidates)
        for start in range(0, self._config.impressions, whole):
            yield self._chunk(np.arange(start, min(start + whole, self._config.impressions)))
        nothing = pa.RecordBatch.from_pylist([], TRUTH_SCHEMA)
        while waiting := [held for held in (self._repeated, self._feedback) if len(held)]:
            now_ms = min(held.due_after(chunk_rows) for held in waiting)
            repeated, _ = self._repeated.pop_until(now_ms)
            feedback, _ = self._feedback.pop_until(now_ms)
            yield Chunk(repeated, feedback, [], self._watermark(now_ms), nothing)

    def _chunk(self, serial_N: np.ndarray) -> Chunk:
        rng, jitter_ms = self._rng, self._config.jitter_ms
        share_N = (serial_N + rng.random(len(serial_N))) / self._config.impressions
        arrival_N = self._world.arrivals(share_N).astype(np.int64) + jitter_ms
        now_ms = int(arrival_N[-1])
        self._world.advance(float(arrival_N[0]))
        time_N = arrival_N - rng.integers(0, jitter_ms + 1, len(serial_N))
        if (K := self._config.candidates) > 1:
            arrival_N, time_N = by_request(arrival_N, K), by_request(time_N, K)
        met, choices = self._world.meet(time_N, rng), None
        if K > 1:
            shared = ("vertical", "user", "position", "device", "session")
            met = met._replace(**{name: by_request(getattr(met, name), K) for name in shared})
            choices = choose(self._config, serial_N, self._world.bid[met.ad], self._choosing)
        id_N = scramble(serial_N + self._salt, 63)
        whole = [slice(0, len(id_N))]
        periods = whole if self._recent is None else self._recent.periods(arrival_N)
        shown_N = np.ones(len(id_N), bool) if choices is None else choices.shown
        happened = [self._happen(id_N[rows], time_N[rows], met.of(rows), shown_N[rows]) for rows in periods]
        truth = pa.concat_batches(happened)
        impressions = self._impressions(id_N, time_N, met, choices)
        self._hold(self._repeated, impressions, arrival_N, np.flatnonzero(self._chance(len(id_N))))
        feedback, _ = self._feedback.pop_until(now_ms)
        malformed = self._malformed.draw(impressions, rng.binomial(len(id_N), self._config.malformed_rate), rng)
        repeated, repeated_ms = self._repeated.pop_until(now_ms)
        if repeated.num_rows:
            order = np.argsort(np.concatenate([arrival_N, repeated_ms]), kind="stable")
            impressions = pa.concat_batches([impressions, repeated]).take(pa.array(order))
        return Chunk(impressions, feedback, malformed, self._watermark(now_ms), truth)

    def _happen(self, id_N: np.ndarray, time_N: np.ndarray, met: Meetings, shown_N: np.ndarray) -> pa.RecordBatch:
        """Draw clicks and conversions of what is shown, send their feedback on its way, and tell the truth: of what is
        not shown, what would be."""
        if self._recent is not None:
            met.recent[:] = self._recent.of(met.user)
        p_ctr, p_cvr = self._world.probabilities(met, time_N)
        vertical_N = met.vertical
        rng = self._rng
        clicked = np.flatnonzero((rng.random(len(id_N), np.float32) < p_ctr) & shown_N)
        converted = clicked[rng.random(len(clicked), np.float32) < p_cvr[clicked]]
        click_ms, cvr_ms = np.zeros_like(time_N), np.zeros_like(time_N)
        click_ms[clicked] = self._delays.click_ms(vertical_N[clicked], rng)
        cvr_ms[converted] = self._delays.conversion_ms(vertical_N[converted], rng)
        lost = np.zeros((2, len(id_N)), bool)
        for task, rows in enumerate((clicked, converted)):
            lost[task, rows] = rng.random(len(rows)) < self._config.lost_rate
        reported = clicked[~lost[0, clicked]]
        self._send(0, id_N, time_N + click_ms, reported)
        if self._recent is not None:
            category_N = self._world.category[met.ad[reported]]
            self._recent.clicked((time_N + click_ms)[reported], met.user[reported], category_N)
        named = {task.name for task in self._schema.tasks}
        if SHOWN in named:
            self._send(_TASKS.index(SHOWN), id_N, time_N, np.flatnonzero(shown_N))
        if "cvr" in named:
            self._send(1, id_N, time_N + click_ms + cvr_ms, converted[~lost[1, converted]])
        in_time_ctr, in_time_cvr = self._in_time
        return pa.RecordBatch.from_arrays(
            [
                *self._identity(id_N, time_N, vertical_N),
                pa.array(p_ctr),
                pa.array(p_ctr * in_time_ctr[vertical_N]),
                pa.array(p_cvr),
                pa.array(p_cvr * in_time_cvr[vertical_N]),
                pa.array(click_ms, mask=click_ms == 0),
                pa.array(cvr_ms, mask=cvr_ms == 0),
                pa.array(lost[0]),
                pa.array(lost[1]),
            ],
            schema=TRUTH_SCHEMA,
        )

    def _send(self, task: int, id_N: np.ndarray, time_N: np.ndarray, rows: np.ndarray) -> None:
        events = pa.RecordBatch.from_arrays(
            [
                pa.array(id_N[rows]),
                pa.array(time_N[rows] + self._config.start_ms),
                self._tasks.take(pa.array(np.full(len(rows), task))),
            ],
            schema=self._schema.feedback,
        )
        due_ms = time_N[rows] + self._rng.integers(0, self._config.jitter_ms + 1, len(rows))
        self._feedback.push(events, due_ms)
        self._hold(self._feedback, events, due_ms, np.flatnonzero(self._chance(len(rows))))

    def _chance(self, count: int) -> np.ndarray:
        return self._rng.random(count, np.float32) < self._config.duplicate_rate

    def _hold(self, held: HeldRows, rows: pa.RecordBatch, first_ms: np.ndarray, repeated: np.ndarray) -> None:
        """Second copies of the rows numbered in `repeated`."""
        wait_ms = self._rng.exponential(1000 * self._config.duplicate_delay_s, len(repeated)).astype(np.int64)
        held.push(rows.take(pa.array(repeated)), first_ms[repeated] + wait_ms)

    def _impressions(
        self, id_N: np.ndarray, time_N: np.ndarray, met: Meetings, choices: Choices | None
    ) -> pa.RecordBatch:
        world = self._world
        columns: dict[str, Callable[[], np.ndarray | pa.Array]] = {
            "user_id": lambda: world.users.ids[met.user],
            "ad_id": lambda: world.ads.ids[met.ad],
            "advertiser_id": lambda: world.advertiser[met.ad],
            "category_id": lambda: world.category[met.ad],
            "audience_id": lambda: world.audience[met.user],
            "hour": lambda: met.hour,
            "position": lambda: met.position,
            "device": lambda: met.device,
            "bid": lambda: world.bid[met.ad],
            "session_minutes": lambda: met.session,
            "ad_age_hours": lambda: met.ad_age,
            RECENT: lambda: lists(met.recent),
            **{name: partial(world.interest[axis].take, met.user) for axis, name in enumerate(INTERESTS)},
        }
        if choices is not None:
            columns |= {REQUEST: lambda: choices.request, PROPENSITY: lambda: choices.propensity.astype(np.float32)}
        return pa.RecordBatch.from_arrays(
            [
                *self._identity(id_N, time_N, met.vertical),
                *(pa.array(columns[column.name]()) for column in self._schema.columns),
            ],
            schema=self._schema.impression,
        )

    def _identity(self, id_N: np.ndarray, time_N: np.ndarray, vertical_N: np.ndarray) -> list[pa.Array]:
        return [
            pa.array(id_N),
            pa.array(time_N + self._config.start_ms),
            self._verticals.take(pa.array(vertical_N)),
        ]

    def _watermark(self, now_ms: int) -> int:
        return self._config.start_ms + now_ms - self._config.jitter_ms


class Choices(NamedTuple):
    """Competition among N candidates: the request of each, its propensity, and whether it was shown."""

    request: np.ndarray
    propensity: np.ndarray
    shown: np.ndarray


def by_request(column_N: np.ndarray, candidates: int) -> np.ndarray:
    """The value of each request's first candidate.

    >>> by_request(np.array([3, 4, 5, 6]), 2).tolist()
    [3, 3, 5, 5]
    """
    return column_N[::candidates].repeat(candidates)


def choose(config: GeneratorConfig, serial_N: np.ndarray, bid_N: np.ndarray, rng: np.random.Generator) -> Choices:
    """Draw the shown candidates among those with these serial numbers, whole requests only.

    >>> config = GeneratorConfig(candidates=2, exploration=0.5)
    >>> made = choose(config, np.arange(4), np.array([1.0, 3.0, 2.0, 2.0]), np.random.default_rng(0))
    >>> made.request.tolist(), made.propensity.tolist(), made.shown.reshape(2, 2).sum(1).tolist()
    ([0, 0, 1, 1], [0.375, 0.625, 0.5, 0.5], [1, 1])
    """
    K = config.candidates
    bid_RK = bid_N.astype(np.float64).reshape(-1, K)
    p_RK = (1 - config.exploration) * bid_RK / bid_RK.sum(1, keepdims=True) + config.exploration / K
    taken_R = (p_RK.cumsum(1)[:, :-1] < rng.random((len(p_RK), 1))).sum(1)
    return Choices(serial_N // K, p_RK.ravel(), (np.arange(K) == taken_R[:, None]).ravel())
