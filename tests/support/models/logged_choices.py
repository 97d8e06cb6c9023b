"""Logged choices of the generated stream, settled as in a lake, whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from exfm.metrics.policy import PolicyValue, best_of_request
from pipelines.lab.judging.settings import Ranking
from pipelines.lab.report.policy import choices
from streaming.schema import RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.sources.settled import settled_rows
from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.world_config import GeneratorConfig, Vertical

WINDOWS = {"shown": 3600.0, "ctr": 3600.0}
COLUMNS = ("user_id", "ad_id", "request_id", "propensity")
ASKED = Ranking(request="request_id", propensity="propensity")


def settled_choices(config: GeneratorConfig) -> tuple[RowSchema, pa.Table, pa.Table]:
    """The schema, what a lake would hold, and the truth in the same order."""
    stream = GeneratedStream(config, WINDOWS, columns=COLUMNS)
    chunks = list(stream.chunks(config.impressions))
    rows = pa.Table.from_batches(settled_rows(chunks, stream.schema, SettlementConfig()))
    truth = pa.Table.from_batches([chunk.truth for chunk in chunks if chunk.truth is not None])
    placed = np.argsort(truth["impression_id"].to_numpy())
    at = placed[np.searchsorted(truth["impression_id"].to_numpy()[placed], rows["impression_id"].to_numpy())]
    return stream.schema, rows, truth.take(pa.array(at))


class LoggedChoices:
    """4,000 requests of a log with 5 candidates each, and a model that knows about half of what users like. `value`:
    what its choices are really worth, in clicks that settle for each request."""

    def __init__(self, seed: int, requests: int = 4000, **changes: Any) -> None:
        one = (Vertical(name="feed", share=1.0, base_rate=0.1),)
        config = GeneratorConfig(
            seed=seed, impressions=5 * requests, candidates=5, verticals=one, users=2000, ads=200, **changes
        )
        self.schema, self.rows, truth = settled_choices(config)
        p = truth["p_settled_ctr"].to_numpy().astype(np.float64)
        self.logits = np.log(p / (1 - p)) + np.random.default_rng([seed, 7]).normal(0, 0.7, len(p))
        target = best_of_request(self.rows["request_id"].to_numpy(), self.logits)
        self.value = float((target * p).sum() / requests)

    def judged(self, **changes: Any) -> PolicyValue:
        """As a replay judges them."""
        columns = {name: self.rows[name].to_numpy() for name in ("request_id", "propensity")}
        labels, users = self.rows["label_ctr"].combine_chunks(), self.rows["user_id"].to_numpy()
        everything = np.ones(len(users), bool)
        return choices(self.logits, labels, columns | changes, ASKED, everything, users)
