"""Settings of distillation: the arms that are compared (ExFM, arXiv 2502.17494)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.errors import ConfigError

PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {
        "kind": "auxiliary_head",
        "adapter": True,
        "weight": 4.0,
        "head_start": "serving",
        "recalibration": "platt",
        "single_head_rows": 5000,
        "follows": "advantage",
    },
}
"""Arms by name. Choose `weight` for your own data: sweeps chose 16 on the demo's stream, 1 on MovieLens."""


class Arm(BaseModel):
    """Settings of how a student distils from its teacher.

    `Arm()` is a plain auxiliary head: everything beyond `kind` and `weight` is off. A preset is a set of settings with
    a name, given alone or with settings that differ from it. What is stored is always the settings themselves.

    A student whose configuration says nothing of an arm has `recommended`: an auxiliary head and an adapter that start
    from the serving head, on a recalibrated logit, with a weight that follows what the teacher has shown to know, after
    5,000 rows of a single head.

    Raises ConfigError (as pydantic's ValidationError) for a setting that its kind has no use for.

    >>> Arm.model_validate("recommended") == Arm.model_validate({"preset": "recommended"})
    True
    >>> Arm.model_validate({"preset": "recommended", "weight": 16}).weight
    16.0
    >>> Arm(kind="auxiliary_head", adapter=True, weight=1.5).distils
    True
    >>> Arm(kind="single_head", single_head_rows=1000)
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for Arm
      Value error, single_head_rows 1000 is a schedule that ends in kind `auxiliary_head`, and this is ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "single_head", "auxiliary_head"] = Field(
        default="auxiliary_head",
        description="`none`: labels only, the twin that others are compared with. `single_head`: the serving head "
        "learns labels and teacher alike, and inherits the teacher's bias. `auxiliary_head`: a separate head learns "
        "from the teacher, and only the trunk is shared.",
    )
    adapter: bool = Field(
        default=False,
        description="Add the student adapter (SA), which corrects the teacher's logit with fresh labels, and a head "
        "that learns from it.",
    )
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="w, the weight of the distillation term.")
    label_scale: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="α: the target is min(1, α times the teacher's probability).",
    )
    gradient_scale: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="β: multiplies the gradient that the training-only heads send to the trunk.",
    )
    temperature: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="τ: divides both logits of the distillation term."
    )
    rows: Literal["labelled", "all"] = Field(
        default="labelled",
        description="`labelled`: a row is distilled for the tasks whose label it settles. `all`: for every task with a "
        "teacher logit, so that a conversion head learns from impressions without a click, too.",
    )
    head_start: Literal["random", "serving"] = Field(
        default="random",
        description="`random`: the heads that learn from teacher and adapter have initial weights of their own. "
        "`serving`: they start as copies of the serving head, so that at first they pull the trunk in the direction of "
        "the labels. This helps a cold student of a good teacher, and hurts one whose teacher is still cold.",
    )
    adapter_width: int = Field(default=8, gt=0, description="Hidden width of the adapter.")
    adapter_lr: float = Field(default=4e-3, gt=0, description="Learning rate of the adapter's Adam.")
    adapter_input: Literal["logit", "context"] = Field(
        default="logit",
        description="`logit`: the adapter sees the teacher's logit. `context`: it sees the age of the scoring snapshot "
        "and the trunk's output, too.",
    )
    recalibration: Literal["none", "platt", "residuals"] = Field(
        default="none",
        description="`platt`: distil a·z_F + b, fitted online to recent labels. An adapter reads it, too. It corrects "
        "a miscalibrated teacher within a few hundred rows; the adapter takes thousands. `residuals`: correct it by "
        "what the teacher got wrong of late for the row's user, item …, too (`residuals_by`): for teachers that are "
        "stale.",
    )
    residuals_by: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default={},
        description="For recalibration `residuals`: sparse features of the student whose ids have a running mean of "
        "the teacher's residuals, each with the rows of one id after which a row counts half: "
        "{user_id: 10, ad_id: 40}.",
    )
    platt_half_life_rows: int = Field(
        default=10_000, gt=0, description="After this many labelled rows, a row counts half in Platt scaling."
    )
    single_head_rows: int = Field(
        default=0,
        ge=0,
        description="Schedule of an auxiliary head: for the first rows, up to this many, the serving head itself "
        "learns from the teacher. The other heads learn from the first row on, without a gradient to the trunk.",
    )
    single_head_weight: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="w during the rows of the schedule."
    )
    extra_steps: int = Field(
        default=0,
        ge=0,
        description="After every step, so many further ones on the same batch that learn from the teacher alone. Each "
        "costs about what the step costs; labels are never learned twice.",
    )
    representation_weight: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Weight of the mean squared error with which a head, in training only, predicts the teacher's "
        "representation of the row from the trunk's output. 0: there is none.",
    )
    representation_width: int = Field(
        default=16, gt=0, description="How many values of the representation that head predicts, the first ones."
    )
    follows: Literal["nothing", "advantage"] = Field(
        default="nothing",
        description="`advantage`: multiply w, and the weight 1 of the adapter's term, by a factor in [0, 1] per task. "
        "It measures on earlier rows what teacher and adapter know that the student does not; before the first row it "
        "is 0.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        given = {"preset": data} if isinstance(data, str) else data
        if not isinstance(given, dict) or "preset" not in given:
            return data
        if not isinstance(given["preset"], str) or given["preset"] not in PRESETS:
            raise ConfigError(f"unknown arm `{given['preset']}`; choose from {', '.join(PRESETS)}")
        return PRESETS[given["preset"]] | {key: value for key, value in given.items() if key != "preset"}

    @model_validator(mode="after")
    def _consistent(self) -> Arm:
        for problem in (
            self._without_teacher(),
            self._of_one_head(),
            self._without_adapter(),
            self._unscheduled(),
            self._of_residuals(),
        ):
            if problem is not None:
                raise ConfigError(problem)
        return self

    def _without_teacher(self) -> str | None:
        if self.kind != "none":
            return None
        for name, off in (
            ("recalibration", "none"),
            ("follows", "nothing"),
            ("extra_steps", 0),
            ("representation_weight", 0),
        ):
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

    def _of_residuals(self) -> str | None:
        if (self.recalibration == "residuals") == bool(self.residuals_by):
            return None
        if self.residuals_by:
            return (
                f"residuals_by {dict(self.residuals_by)} belongs to recalibration `residuals`, and this is "
                f"`{self.recalibration}`; set `recalibration: residuals`, or leave it out"
            )
        return (
            "recalibration `residuals` needs `residuals_by`: sparse features with a half-life in rows each, such as "
            "{user_id: 10, ad_id: 40}; or use `platt`"
        )

    @property
    def distils(self) -> bool:
        """True if the teacher is used at all."""
        return self.kind != "none"
