"""How a student uses its teacher, as settings: the arms that are compared (ExFM, arXiv 2502.17494)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.errors import ConfigError


class Arm(BaseModel):
    """How a student uses its teacher. All beyond `kind` and `weight` is off unless it is asked for.

    kind
        `none`: labels only, the twin that others are compared with;
        `single_head`: the serving head learns labels and teacher alike, and inherits the teacher's bias;
        `auxiliary_head`: a head of its own learns from the teacher, and only the trunk is shared.
    rows
        `labelled`: a row is distilled for the tasks whose label it settles;
        `all`: for every task with a teacher logit (a conversion head then learns from impressions without a click too).
    head_start
        `random`: the heads that learn from teacher and adapter begin with weights of their own;
        `serving`: with the serving head's, so that at first they pull the trunk the way the labels do. That helps a
        cold student of a good teacher, and hurts one of a teacher that is still cold itself.
    adapter_input
        `logit`: SA(z_F); `context`: SA(z_F, age of the snapshot, trunk's output), see exfm/distillation/adapter.py.
    recalibration
        `platt`: what is distilled is a·z_F + b, learned online from the last some `platt_half_life_rows` labelled rows
        (platt.py). An adapter reads it too. It mends a miscalibrated teacher in a few hundred rows, which the
        adapter takes thousands for: what a student most needs that is born beside one.
    single_head_rows
        The schedule of an auxiliary head: for the first so many rows the serving head itself learns from the teacher,
        with `single_head_weight`, and trunk and tables from nothing else of it. The other heads learn beside it from
        the first row on, without a gradient to the trunk, so that they are warm at the change.
    follows
        `advantage`: w, and the weight 1 of the adapter's term, are multiplied by a factor in [0, 1] for each task. It
        follows what teacher (and adapter) were seen to know that the student did not, on rows before this step
        (exfm/distillation/advantage.py), and is 0 before the first.

    Raises ConfigError (as pydantic's ValidationError) for a setting that its kind has no use for.

    >>> Arm(kind="auxiliary_head", adapter=True, weight=1.5).distils
    True
    >>> Arm(kind="single_head", single_head_rows=1000)
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for Arm
      Value error, single_head_rows 1000 is a schedule that ends in kind `auxiliary_head`, and this is ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "single_head", "auxiliary_head"] = "auxiliary_head"
    adapter: bool = False
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # w
    label_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # α
    gradient_scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # β
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # τ
    rows: Literal["labelled", "all"] = "labelled"
    head_start: Literal["random", "serving"] = "random"
    adapter_width: int = Field(default=8, gt=0)
    adapter_lr: float = Field(default=4e-3, gt=0)
    adapter_input: Literal["logit", "context"] = "logit"
    recalibration: Literal["none", "platt"] = "none"
    platt_half_life_rows: int = Field(default=10_000, gt=0)
    single_head_rows: int = Field(default=0, ge=0)
    single_head_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    follows: Literal["nothing", "advantage"] = "nothing"

    @model_validator(mode="after")
    def _consistent(self) -> Arm:
        for problem in (self._without_teacher(), self._of_one_head(), self._without_adapter(), self._unscheduled()):
            if problem is not None:
                raise ConfigError(problem)
        return self

    def _without_teacher(self) -> str | None:
        if self.kind != "none":
            return None
        for name, off in (("recalibration", "none"), ("follows", "nothing")):
            if (asked := getattr(self, name)) != off:
                return (
                    f"{name} `{asked}` in arm `none` has no teacher to work on; leave it out, or use kind "
                    "`single_head` or `auxiliary_head`"
                )
        return None

    def _of_one_head(self) -> str | None:
        if self.adapter and self.kind != "auxiliary_head":
            return f"arm `{self.kind}` has no place for a student adapter; drop `adapter`, or use kind `auxiliary_head`"
        if self.kind != "single_head":
            return None
        if self.label_scale != 1:
            return (
                f"label_scale {self.label_scale} in arm `single_head` would miscalibrate the served head "
                "(its predictions move towards that multiple of the truth); use 1, or kind `auxiliary_head`"
            )
        if self.gradient_scale != 1:
            return (
                f"gradient_scale {self.gradient_scale} in arm `single_head` has no path of its own to scale; "
                "use 1 and change `weight`, or kind `auxiliary_head`"
            )
        return None

    def _without_adapter(self) -> str | None:
        if self.adapter_input != "logit" and not self.adapter:
            return (
                f"adapter_input `{self.adapter_input}` is for a student adapter, and this arm has none; set `adapter: "
                "true` (kind `auxiliary_head`), or leave it out"
            )
        return None

    def _unscheduled(self) -> str | None:
        if self.single_head_rows and self.kind != "auxiliary_head":
            return (
                f"single_head_rows {self.single_head_rows} is a schedule that ends in kind `auxiliary_head`, and this "
                f"is `{self.kind}`; use kind `auxiliary_head`, or leave it out"
            )
        if self.single_head_weight != 1 and not self.single_head_rows:
            return (
                f"single_head_weight {self.single_head_weight} belongs to the rows of a schedule, and there are 0; set "
                "`single_head_rows`, or use `weight`"
            )
        return None

    @property
    def distils(self) -> bool:
        """Whether the teacher is used at all."""
        return self.kind != "none"
