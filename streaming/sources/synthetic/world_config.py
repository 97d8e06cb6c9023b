"""Settings of the synthetic ads world: verticals, sizes, delays, faults."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Vertical(BaseModel):
    """A slice of the traffic. Delays are lognormal: a median, and the standard deviation of the logarithm."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(min_length=1, max_length=64, description="name of the vertical")
    share: float = Field(gt=0, description="share of the impressions; shares are scaled to sum to 1")
    base_rate: float = Field(gt=0, lt=1, description="mean probability of a click")
    cvr_rate: float = Field(default=0.12, gt=0, lt=1, description="mean probability of a conversion, given a click")
    drift: float = Field(default=0.3, ge=0, description="amplitude, in logits, of the slow sine wave in its base rate")
    distinct: float = Field(
        default=0.5, ge=0, description="how far tastes in this vertical differ from those that all verticals share"
    )
    click_delay_s: float = Field(default=240.0, gt=0, description="median seconds from impression to click")
    click_delay_sigma: float = Field(
        default=1.2, gt=0, le=4, description="standard deviation of the logarithm of the click delay"
    )
    cvr_delay_s: float = Field(default=5400.0, gt=0, description="median seconds from click to conversion")
    cvr_delay_sigma: float = Field(
        default=1.6,
        gt=0,
        le=4,
        description="standard deviation of the logarithm of the conversion delay; 1.6 is hours to days",
    )


FOUR_VERTICALS = (
    Vertical(name="feed", share=0.45, base_rate=0.10, cvr_rate=0.10),
    Vertical(name="shop", share=0.30, base_rate=0.15, cvr_rate=0.18, click_delay_s=180.0, cvr_delay_s=7200.0),
    Vertical(name="video", share=0.17, base_rate=0.20, cvr_rate=0.08, click_delay_s=420.0, click_delay_sigma=1.4),
    Vertical(name="travel", share=0.08, base_rate=0.02, cvr_rate=0.12, cvr_delay_s=10800.0, cvr_delay_sigma=1.8),
)


class GeneratorConfig(BaseModel):
    """The synthetic ads stream; the same config gives the same bytes. `configs/demo.yaml` sets a world of its own: the
    defaults are a smaller one, of few popular ads and many clicks, which short streams and tests do with.

    `duration_s` is the span of event time: the same impressions over a longer span are a thinner stream. Users and ads
    stay for an exponential time, whose mean is `user_stay` and `ad_stay` times the span, then others take their place;
    `users` and `ads` count all that are met on the way.

    >>> GeneratorConfig(impressions=1000).users
    20000
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    seed: int = Field(default=1, ge=0, description="the same seed, and otherwise equal settings, give the same bytes")
    impressions: int = Field(default=600_000, ge=1, description="number of impressions, duplicates not counted")
    start_ms: int = Field(
        default=1_704_067_200_000, ge=0, description="event time of the first impression, in milliseconds since 1970"
    )
    duration_s: float = Field(
        default=172_800.0, gt=0, description="seconds of event time from the first impression to the last"
    )
    verticals: tuple[Vertical, ...] = Field(
        default=FOUR_VERTICALS, min_length=1, description="the verticals and their shares"
    )

    base_rate_scale: float = Field(
        default=1.0,
        gt=0,
        description="multiplies the `base_rate` of every vertical: 0.1 for a tenth of the clicks",
    )

    users: int = Field(default=20_000, ge=1, le=2**30, description="number of users met during the stream")
    ads: int = Field(default=2_000, ge=1, le=2**30, description="number of ads met during the stream")
    user_zipf: float = Field(
        default=0.9, ge=0, description="exponent of the users' activity; 0: all are equally active"
    )
    user_zipf_offset: float = Field(
        default=0.0,
        ge=0,
        description="added to a user's rank before it is raised to the exponent: the larger, the milder the top",
    )
    ad_zipf: float = Field(default=1.0, ge=0, description="exponent of the ads' popularity; 0: all are equally popular")
    ad_zipf_offset: float = Field(
        default=0.0,
        ge=0,
        description="added to an ad's rank before it is raised to the exponent: the larger, the milder the top",
    )
    user_stay: float = Field(default=0.8, gt=0, description="mean time that a user stays, in spans of the stream")
    ad_stay: float = Field(default=0.35, gt=0, description="mean time that an ad stays, in spans of the stream")
    segments: int = Field(default=40, ge=1, description="groups of users with similar tastes")
    categories: int = Field(default=60, ge=1, description="groups of advertisers")
    advertisers: int = Field(default=800, ge=1, description="number of advertisers")
    user_own: float = Field(
        default=0.45, ge=0, le=1, description="spread of the users inside a segment; the total spread is 1"
    )
    ad_own: float = Field(
        default=0.4, ge=0, le=1, description="spread of the ads of one advertiser; the total spread is 1"
    )
    taste: float = Field(default=1.3, ge=0, description="strength, in logits, of the match between user and ad")
    bias: float = Field(default=0.35, ge=0, description="spread, in logits, of each user's and each ad's own level")
    moment_taste: float = Field(
        default=0.0,
        ge=0,
        description="strength, in logits, of what an audience likes of a category at a time of day and on a device: an "
        "interaction of third order, which no pair of columns shows",
    )
    recent_taste: float = Field(
        default=0.0,
        ge=0,
        description="strength, in logits, with which the categories of a user's last clicks decide the next click",
    )
    recent_clicks: int = Field(
        default=8,
        ge=1,
        le=64,
        description="how many of a user's last clicks are kept, in the column `recent_categories` too",
    )
    recent_every_s: float = Field(
        default=300.0,
        gt=0,
        description="clicks become known to `recent_categories` this often, all together",
    )
    campaigns: int = Field(
        default=1,
        ge=1,
        description="campaigns that follow one another in equal parts of the stream; with each, half of the "
        "advertisers appeal to others at once, and by another amount",
    )
    candidates: int = Field(
        default=1,
        ge=1,
        le=100,
        description="ads that compete for one request, of which the log shows one at random, preferring high bids; all "
        "are impressions, with columns `request_id` and `propensity`, and need a task `shown` that clicks are given. "
        "1: every impression is shown",
    )
    exploration: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="share of the requests whose candidate is drawn evenly, where several compete",
    )
    drift_period: float = Field(
        default=0.6, gt=0, description="period of the sine wave in each base rate, in spans of the stream"
    )
    rotation: float = Field(default=0.15, ge=0, description="full turns that tastes make during the stream")
    daily_swing: float = Field(default=0.4, ge=0, lt=1, description="relative amplitude of the traffic over a day")

    jitter_s: float = Field(default=5.0, ge=0, description="a record arrives up to this many seconds after its event")
    lost_rate: float = Field(default=0.02, ge=0, lt=1, description="share of the feedback that never arrives")
    duplicate_rate: float = Field(default=0.002, ge=0, lt=1, description="share of the records that arrive twice")
    duplicate_delay_s: float = Field(default=60.0, ge=0, description="mean seconds until the second copy")
    malformed_rate: float = Field(
        default=1e-4, ge=0, lt=1, description="malformed records, as a share of the impressions and in addition to them"
    )

    @model_validator(mode="after")
    def _distinct_names(self) -> GeneratorConfig:
        names = [vertical.name for vertical in self.verticals]
        if len(set(names)) < len(names):
            raise ValueError(f"verticals need distinct names, got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _whole_requests(self) -> GeneratorConfig:
        if left := self.impressions % self.candidates:
            raise ValueError(
                f"{self.impressions:,} impressions are no whole number of requests of {self.candidates} candidates; "
                f"give {self.impressions - left:,} or {self.impressions - left + self.candidates:,}"
            )
        return self

    @model_validator(mode="after")
    def _possible_rates(self) -> GeneratorConfig:
        most = max(self.verticals, key=self.click_rate)
        if self.click_rate(most) >= 1:
            raise ValueError(
                f"a base_rate_scale of {self.base_rate_scale:g} makes the click rate of `{most.name}` "
                f"{self.click_rate(most):g}; keep it below {1 / most.base_rate:g}, so that every rate is below 1"
            )
        return self

    @property
    def duration_ms(self) -> float:
        return self.duration_s * 1000

    @property
    def jitter_ms(self) -> int:
        return round(self.jitter_s * 1000)

    def click_rate(self, vertical: Vertical) -> float:
        """Mean probability of a click in one of the verticals.

        >>> config = GeneratorConfig(base_rate_scale=0.1)
        >>> round(config.click_rate(config.verticals[0]), 6)
        0.01
        """
        return vertical.base_rate * self.base_rate_scale
