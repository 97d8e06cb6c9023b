"""How long labels and ids are waited for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from streaming.errors import BadInput
from streaming.schema import RowSchema


class SettlementConfig(BaseModel):
    """How long labels and ids are waited for, in seconds of event time.

    lateness_s: how far feedback may trail event time and still count.
    dedup_horizon_s: how long an id stays known after its admission: for duplicates, for late feedback and for feedback
    that precedes its impression. At least the longest window + lateness; default: twice the longest window + lateness.
    max_future_skew_s: for the merge, see `Merge`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lateness_s: float = Field(default=0.0, ge=0)
    dedup_horizon_s: float | None = Field(default=None, gt=0)
    max_future_skew_s: float | None = Field(default=None, gt=0)

    @property
    def lateness_ms(self) -> int:
        return round(self.lateness_s * 1000)

    def horizon_ms(self, schema: RowSchema) -> int:
        """The deduplication horizon for the tasks of `schema`. Raises BadInput when it is too short for them.

        >>> schema = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 60}])
        >>> SettlementConfig(lateness_s=5).horizon_ms(schema)
        125000
        """
        longest = schema.groups[-1].window_ms
        if self.dedup_horizon_s is None:
            return 2 * longest + self.lateness_ms
        horizon = round(self.dedup_horizon_s * 1000)
        if horizon < longest + self.lateness_ms:
            raise BadInput(
                f"dedup_horizon_s is {self.dedup_horizon_s:g}, and ids have to be known for the longest window + "
                f"lateness = {longest / 1000:g} + {self.lateness_s:g} s; raise it, or shorten the window of "
                f"`{schema.groups[-1].name}`"
            )
        return horizon
