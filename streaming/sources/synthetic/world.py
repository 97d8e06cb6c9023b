"""The synthetic ads world: encounters of users and ads, and their outcomes.

    logit p_ctr = base_v(t) + taste · uᵀ M_v(t) a / √8 + user's level + ad's level + circumstances
                  + moment_taste · moment + recent_taste · succession                                    (0 by default)
    M_v(t)      = I + distinct_v · N_v(t),   N_v(t) = cos θ(t) N_v¹ + sin θ(t) N_v²
    u = segment's centre + own,   a = category's centre + advertiser's + own        (8 axes of unit variance)
    moment      = Σ_d s_d c_d m_d / √8          audience, category, and the moment: part of the day and device
    succession  = Σ_i w_i T[r_i, c] / Σ_i w_i    r_i the category clicked i clicks ago, w_i = 0.7^i, T = X Yᵀ

Circumstances are hour, position, device, minutes in the session, age of the ad. Verticals share most of what users like
(the identity), each bends it its own way, and that turns slowly. A conversion, given a click, has a logit of the same
form with matrices and levels of its own, without patterns. Bases are solved for, so that each vertical's mean rates
over the stream are those asked for. With a new campaign, half of the advertisers are as if new. The vectors of the
patterns (moment, succession) are standard normal, X leans on Y, so that a category mostly follows itself; T has mean 0
over what may follow and variance 1.

Letters: N rows, V verticals, S users at a time, A ads at a time, D = 8 latent axes; L clicks kept, C categories, G
audiences, H moments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streaming.sources.synthetic.population import Population, normal, uniform
from streaming.sources.synthetic.recent import NONE
from streaming.sources.synthetic.world_config import GeneratorConfig

AXES = 8
POSITIONS = 8
DEVICES = 4
INTEREST_EDGES = np.array([-0.8416, -0.2533, 0.2533, 0.8416], np.float32)
HOUR_MS = 3_600_000
CALIBRATION_INSTANTS = 64
CALIBRATION_ROWS = 1024
CANDIDATES = 16
NEWTON_STEPS = 8
DAY_MS = 86_400_000


class Meetings(NamedTuple):
    """N impressions: index of the vertical, slots of user and ad, and the circumstances, (N,) each; and the user's
    recent clicks, (N, L) categories, the most recent last."""

    vertical: np.ndarray
    user: np.ndarray
    ad: np.ndarray
    hour: np.ndarray
    position: np.ndarray
    device: np.ndarray
    session: np.ndarray
    ad_age: np.ndarray
    recent: np.ndarray

    def of(self, rows: slice) -> Meetings:
        return Meetings(*(column[rows] for column in self))


class World:
    """Draws meetings and knows their probabilities. One instant at a time: `advance`, then `meet`, `logits`.

    >>> world = World(GeneratorConfig(users=500, ads=50))
    >>> rng = np.random.default_rng(0)
    >>> meetings = world.meet(np.arange(1000) * 60_000, rng)
    >>> p_ctr, p_cvr = world.probabilities(meetings, np.arange(1000) * 60_000)
    >>> bool((p_ctr > 0).all() and (p_cvr < 1).all())
    True
    """

    def __init__(self, config: GeneratorConfig) -> None:
        self.config = config
        rng = np.random.default_rng([config.seed, 0])
        common_user, common_ad = (np.float32(np.sqrt(1 - own**2)) for own in (config.user_own, config.ad_own))
        self._segment_D = common_user * rng.standard_normal((config.segments, AXES), np.float32)
        self._category_D = 0.8 * common_ad * rng.standard_normal((config.categories, AXES), np.float32)
        self._advertiser_spread = 0.6 * common_ad
        self._advertiser_D = self._advertiser_spread * rng.standard_normal((config.advertisers, AXES), np.float32)
        self._advertiser_category = rng.integers(0, config.categories, config.advertisers)
        V = len(config.verticals)
        self._share = np.cumsum([v.share for v in config.verticals]) / sum(v.share for v in config.verticals)
        self._drift = np.array([v.drift for v in config.verticals], np.float32)
        self._distinct = np.array([v.distinct for v in config.verticals], np.float32)[:, None, None]
        self._phase = rng.uniform(0, 2 * np.pi, V).astype(np.float32)
        self._bends = (rng.standard_normal((2, 2, V, AXES, AXES)) / np.sqrt(AXES)).astype(np.float32)
        peak = rng.uniform(0, 2 * np.pi, (V, 1))
        self._hour = (0.2 * np.cos(2 * np.pi * np.arange(24) / 24 - peak)).astype(np.float32)
        self._position = (-0.12 * np.arange(POSITIONS) * rng.uniform(0.5, 1.5, (V, 1))).astype(np.float32)
        self._device = rng.normal(0, 0.25, (V, DEVICES)).astype(np.float32)
        self._position_of = np.repeat(np.arange(POSITIONS), [72, 52, 40, 30, 22, 18, 12, 10])
        self._device_of = np.repeat(np.arange(DEVICES), [140, 70, 30, 16])
        self._patterns = Patterns(config, DEVICES)
        self._base = np.zeros((2, V), np.float32)
        self._populate()
        self._base = self._calibrated(np.random.default_rng([config.seed, 1]))
        self._populate()

    def _populate(self) -> None:
        c = self.config
        ms, seed = c.duration_ms, c.seed
        sizes = (
            (c.users, c.user_zipf, c.user_zipf_offset, c.user_stay),
            (c.ads, c.ad_zipf, c.ad_zipf_offset, c.ad_stay),
        )
        self.users, self.ads = (
            Population(total=total, zipf=zipf, offset=offset, stay=stay, duration_ms=ms, seed=seed, kind=kind)
            for kind, (total, zipf, offset, stay) in enumerate(sizes)
        )
        S, A = self.users.places, self.ads.places
        self._user_SD, self._user_level = np.empty((S, AXES), np.float32), np.empty((2, S), np.float32)
        self._ad_AD, self._ad_level = np.empty((A, AXES), np.float32), np.empty((2, A), np.float32)
        self.interest, self.audience = np.empty((AXES, S), np.int64), np.empty(S, np.int64)
        self.advertiser, self.category = np.empty(A, np.int64), np.empty(A, np.int64)
        self.bid = np.empty(A, np.float32)
        self._meet_users(np.arange(S))
        self._campaign = 0
        self._appeal_D, self._appeal_level = self._advertiser_D.copy(), np.zeros(c.advertisers, np.float32)
        self._meet_ads(np.arange(A))
        self._turn(0.0)

    def advance(self, now_ms: float) -> None:
        """Bring population and tastes to `now_ms` since the start; time never goes back."""
        self._meet_users(self.users.advance(now_ms))
        new_ads, campaigns = self.ads.advance(now_ms), self.config.campaigns
        campaign = min(int(campaigns * now_ms / self.config.duration_ms), campaigns - 1)
        self._meet_ads(np.arange(self.ads.places) if self._begin(campaign) else new_ads)
        self._turn(now_ms)

    def _begin(self, campaign: int) -> bool:
        """True if a new campaign has begun, counted from 0: half of the advertisers have changed with each."""
        before, self._campaign = self._campaign, campaign
        for number in range(before + 1, campaign + 1):
            rng = np.random.default_rng([self.config.seed, 5, number])
            changed = np.flatnonzero(rng.random(self.config.advertisers) < 0.5)
            self._appeal_D[changed] = self._advertiser_spread * rng.standard_normal((len(changed), AXES), np.float32)
            self._appeal_level[changed] = self.config.bias * rng.standard_normal(len(changed), np.float32)
        return campaign > before

    def _meet_users(self, new: np.ndarray) -> None:
        keys = self.users.keys[new]
        segment = (uniform(keys, 100) * self.config.segments).astype(np.int64)
        own = np.stack([normal(keys, axis) for axis in range(10, 10 + AXES)], axis=1)
        self._user_SD[new] = self._segment_D[segment] + self.config.user_own * own
        self._user_level[:, new] = self.config.bias * np.stack([normal(keys, 30), normal(keys, 31)])
        self.interest[:, new] = np.searchsorted(INTEREST_EDGES, self._user_SD[new]).T
        self.audience[new] = segment

    def _meet_ads(self, new: np.ndarray) -> None:
        keys = self.ads.keys[new]
        advertiser = (uniform(keys, 100) * self.config.advertisers).astype(np.int64)
        category = self._advertiser_category[advertiser]
        own = np.stack([normal(keys, axis) for axis in range(10, 10 + AXES)], axis=1)
        self._ad_AD[new] = self._category_D[category] + self._appeal_D[advertiser] + self.config.ad_own * own
        level = np.stack([normal(keys, 30), normal(keys, 31)])
        self._ad_level[:, new] = self.config.bias * level + self._appeal_level[advertiser]
        self.advertiser[new], self.category[new] = advertiser, category
        self.bid[new] = np.exp(0.4 * level[0] + 0.6 * normal(keys, 32))

    def _turn(self, now_ms: float) -> None:
        theta = 2 * np.pi * self.config.rotation * now_ms / self.config.duration_ms
        bend = np.cos(theta) * self._bends[:, 0] + np.sin(theta) * self._bends[:, 1]
        matrix = np.eye(AXES, dtype=np.float32) + self._distinct * bend.astype(np.float32)
        scale = np.float32(self.config.taste / np.sqrt(AXES))
        self._bent_ad = (scale * np.einsum("kvde,ae->kvad", matrix, self._ad_AD)).astype(np.float32)

    def arrivals(self, share_N: np.ndarray) -> np.ndarray:
        """Arrival times of the given shares of all impressions, in ms since the start: traffic rises and falls
        daily."""

        def busy(even_ms: np.ndarray) -> np.ndarray:
            wave = self.config.daily_swing * DAY_MS / (2 * np.pi)
            return even_ms - wave * (1 - np.cos(2 * np.pi * even_ms / DAY_MS))

        span = np.array(self.config.duration_ms)
        return busy(share_N * span) * (span / busy(span))

    def meet(self, since_start_N: np.ndarray, rng: np.random.Generator, user_N: np.ndarray | None = None) -> Meetings:
        """Draw meetings at the given times (ms since the start), between present users and ads, with no earlier
        clicks. `user_N`: in place of those who would be drawn; the rest is as it would be without."""
        N = len(since_start_N)
        vertical = np.searchsorted(self._share, rng.random(N), side="right").clip(max=len(self._share) - 1)
        drawn_N = rng.random(N)
        user = self.users.draw(drawn_N) if user_N is None else user_N
        ad = self.ads.draw(rng.random(N))
        age_h = ((since_start_N - self.ads.arrived_ms[ad]) / HOUR_MS).clip(min=0).astype(np.float32)
        return Meetings(
            vertical,
            user,
            ad,
            ((self.config.start_ms + since_start_N) // HOUR_MS % 24).astype(np.int64),
            self._position_of[rng.integers(0, 256, N, np.uint8)],
            self._device_of[rng.integers(0, 256, N, np.uint8)],
            8 * rng.standard_exponential(N, np.float32),
            age_h,
            np.full((N, self.config.recent_clicks), NONE, np.int64),
        )

    def logits(self, m: Meetings, since_start_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N,) of a click, (N,) of a conversion given the click."""
        ctr, cvr = self._first_click_logit(m, since_start_N), self._match(1, m, since_start_N)
        cvr += np.float32(0.1) * np.log1p(m.session)
        if strength := np.float32(self.config.recent_taste):
            ctr += strength * self._patterns.succession(m.recent, self.category[m.ad])
        return ctr, cvr

    def _first_click_logit(self, m: Meetings, since_start_N: np.ndarray) -> np.ndarray:
        """(N,) of a click, of users who clicked nothing before."""
        ctr = self._match(0, m, since_start_N)
        ctr += self._hour[m.vertical, m.hour] + self._position[m.vertical, m.position]
        ctr -= np.float32(0.1) * np.log1p(m.session) + np.float32(0.05) * np.log1p(m.ad_age)
        if strength := np.float32(self.config.moment_taste):
            ctr += strength * self._patterns.moment(self.audience[m.user], self.category[m.ad], m.hour, m.device)
        return ctr

    def _match(self, k: int, m: Meetings, since_start_N: np.ndarray) -> np.ndarray:
        """(N,) of a logit what base, user, ad, device and the vertical's drift make: k = 0 of a click, 1 of a
        conversion."""
        turn = 2 * np.pi / (self.config.drift_period * self.config.duration_ms)
        drift = self._drift[m.vertical] * np.sin((turn * since_start_N).astype(np.float32) + self._phase[m.vertical])
        logit_N: np.ndarray = (
            self._base[k][m.vertical]
            + np.einsum("nd,nd->n", self._user_SD[m.user], self._bent_ad[k][m.vertical, m.ad])
            + self._user_level[k][m.user]
            + self._ad_level[k][m.ad]
            + drift
            + self._device[m.vertical, m.device]
        )
        return logit_N

    def probabilities(self, m: Meetings, since_start_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N,) p_ctr, (N,) p_cvr, float32."""
        ctr, cvr = self.logits(m, since_start_N)
        return sigmoid(ctr), sigmoid(cvr)

    def _calibrated(self, rng: np.random.Generator) -> np.ndarray:
        """Bases (2, V) at which the mean rates are the configured ones, over the population met during the stream."""
        V, c = len(self.config.verticals), self.config
        rate_V = np.array([c.click_rate(v) for v in c.verticals])
        logits: list[list[np.ndarray]] = [[], []]
        for instant in range(CALIBRATION_INSTANTS):
            since_start = self.arrivals((instant + np.sort(rng.random(CALIBRATION_ROWS))) / CALIBRATION_INSTANTS)
            self.advance(float(since_start[CALIBRATION_ROWS // 2]))
            meetings = self.meet(since_start, rng)
            if c.recent_taste:
                meetings.recent[:] = self._likely_clicks(meetings.user, since_start, rate_V, rng)
            each = [
                self.logits(meetings._replace(vertical=np.full_like(meetings.vertical, v)), since_start)
                for v in range(V)
            ]
            for k in (0, 1):
                logits[k].append(np.stack([both[k] for both in each]).astype(np.float64))
        ctr_VN, cvr_VN = (np.concatenate(parts, axis=1) for parts in logits)
        base_ctr = _solve(ctr_VN, np.ones_like(ctr_VN), rate_V)
        clicked_VN = sigmoid(ctr_VN + base_ctr[:, None])
        base_cvr = _solve(cvr_VN, clicked_VN, np.array([v.cvr_rate for v in c.verticals]))
        return np.stack([base_ctr, base_cvr]).astype(np.float32)

    def _likely_clicks(
        self, user_N: np.ndarray, since_start_N: np.ndarray, rate_V: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Categories that users may have clicked before, (N, L): as many as their activity and the mean rate make, of
        ads that would be shown to them, in proportion to the odds of a click."""
        N, L = len(user_N), self.config.recent_clicks
        mean_rate = float(np.diff(self._share, prepend=0) @ rate_V)
        present_N = (since_start_N - self.users.arrived_ms[user_N].clip(min=0)) / self.config.duration_ms
        shown_N = self.config.impressions * self.users.shares[user_N] * present_N.clip(min=0)
        there_NL = np.arange(L)[::-1] < rng.poisson(shown_N * mean_rate)[:, None]
        shown_ms = np.repeat(since_start_N, CANDIDATES)
        shown = self.meet(shown_ms, rng, np.repeat(user_N, CANDIDATES))
        odds_NK = self._first_click_logit(shown, shown_ms).reshape(N, CANDIDATES)
        odds_NK += np.log(rate_V / (1 - rate_V))[shown.vertical].reshape(N, CANDIDATES)
        row, _ = np.nonzero(there_NL)
        chosen = np.argmax(odds_NK[row] + rng.gumbel(size=(N, L, CANDIDATES))[there_NL], axis=1)
        recent_NL = np.full((N, L), NONE, np.int64)
        recent_NL[there_NL] = self.category[shown.ad].reshape(N, CANDIDATES)[row, chosen]
        return recent_NL


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _solve(logit_VN: np.ndarray, weight_VN: np.ndarray, rate_V: np.ndarray) -> np.ndarray:
    """b (V,) with Σ weight · σ(logit + b) = rate · Σ weight in each row, by Newton's method on the rate's logit."""
    share_VN = weight_VN / weight_VN.sum(axis=1, keepdims=True)
    wanted_V = np.log(rate_V / (1 - rate_V))
    base_V = wanted_V.copy()
    for _ in range(NEWTON_STEPS):
        p_VN = sigmoid(logit_VN + base_V[:, None])
        mean_V, slope_V = (share_VN * p_VN).sum(axis=1), (share_VN * p_VN * (1 - p_VN)).sum(axis=1)
        base_V += (wanted_V - np.log(mean_V / (1 - mean_V))) * mean_V * (1 - mean_V) / slope_V
    return base_V


DAY_PARTS = 4
DECAY = 0.7
OF_ITSELF = 0.6
WIDTH = 8


class Patterns:
    """Logit terms of a click from time of day and succession, at strength 1."""

    def __init__(self, config: GeneratorConfig, devices: int) -> None:
        rng = np.random.default_rng([config.seed, 4])
        self._devices = devices
        audience, category, moment = (
            rng.standard_normal((count, WIDTH)) for count in (config.segments, config.categories, DAY_PARTS * devices)
        )
        self._moment_GCH = (np.einsum("gd,cd,hd->gch", audience, category, moment) / np.sqrt(WIDTH)).astype(np.float32)
        follows = rng.standard_normal((config.categories, WIDTH))
        leads = OF_ITSELF * follows + np.sqrt(1 - OF_ITSELF**2) * rng.standard_normal((config.categories, WIDTH))
        after_CC = leads @ follows.T
        after_CC -= after_CC.mean(axis=1, keepdims=True)
        self._after_CC = (after_CC / max(after_CC.std(), 1e-9)).astype(np.float32)
        self._weight_L = (DECAY ** np.arange(config.recent_clicks)[::-1]).astype(np.float32)

    def moment(
        self, audience_N: np.ndarray, category_N: np.ndarray, hour_N: np.ndarray, device_N: np.ndarray
    ) -> np.ndarray:
        part_N = hour_N * DAY_PARTS // 24
        logit_N: np.ndarray = self._moment_GCH[audience_N, category_N, part_N * self._devices + device_N]
        return logit_N

    def succession(self, recent_NL: np.ndarray, category_N: np.ndarray) -> np.ndarray:
        """Succession term of the logit; 0 without an earlier click."""
        weight_NL = np.where(recent_NL == NONE, np.float32(0), self._weight_L)
        after_NL = self._after_CC[recent_NL, category_N[:, None]]
        total_N = weight_NL.sum(axis=1)
        logit_N: np.ndarray = (weight_NL * after_NL).sum(axis=1) / np.where(total_N > 0, total_N, np.float32(1))
        return logit_N
