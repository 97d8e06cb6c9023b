"""The catalogue of metrics: one line each, and the one function that turns them into Prometheus' text.

A line names the field that the metric is read from, in `status.json` of a run (`RUN`) or among the figures of a server
(`SERVER`): `workers.{worker}.ne.{task}`. A part in braces stands for every key there, and is a label. Of a list it
names the fields of its items that are labels: `alarms.{alarm=state,severity,about}.for_s`. What a run does not have,
or does not know yet, has no sample. A counter that a restart has taken back to a checkpoint stays at the most that it
was until it is beyond that (`ahead` of the status): Prometheus would take what is left for an increase.

What MLflow has of a run is a line of MLFLOW.

From it are made `/metrics` of a run and of a server, `exfm metrics`, the rules for Prometheus and the dashboards of
Grafana (files.py), and the page of the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class MetricType(StrEnum):
    """Type of a metric.

    gauge      a number; a time of day counts as seconds since 1970
    counter    a number that only grows, but for a restart; Prometheus has it with `_total` behind its name
    histogram  `{"histogram": [[upper bound, number], …], "sum": …}`, with the sum or without
    info       a text: it is a label, named like its field, and the value is 1
    """

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Metered(NamedTuple):
    """A metric: its name without `_total`, its type, where it is read, and its meaning. `exemplar`: fields beside
    its own that OpenMetrics shows with each sample, as a part in braces names labels."""

    name: str
    type: MetricType
    path: str
    meaning: str
    exemplar: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its labels, in order.

        >>> Metered("a", MetricType.GAUGE, "alarms.{alarm=state,about}.for_s", "").labels
        ('alarm', 'about')
        >>> Metered("a", MetricType.INFO, "workers.{worker}.state", "").labels
        ('worker', 'state')
        """
        named = [label for part in _BRACES.findall(self.path) for label, _ in _labels_of(part)]
        return (*named, self.path.rpartition(".")[2]) if self.type is MetricType.INFO else tuple(named)

    @property
    def sample(self) -> str:
        """Name of its samples in Prometheus."""
        return f"{self.name}_total" if self.type is MetricType.COUNTER else self.name

    def readings(self, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield every reading in `value`, with the values of its labels.

        >>> lag = Metered("lag", MetricType.GAUGE, "workers.{worker}.lag", "")
        >>> list(lag.readings({"workers": {"a": {"lag": 3}, "b": {"lag": None}}}))
        [(('a',), 3)]
        """
        ahead = value.get("ahead") or {}
        for labels, reading in _readings(self.path.split("."), value):
            if reading is None:
                continue
            if ahead and self.type in (MetricType.COUNTER, MetricType.HISTOGRAM):
                reading = ahead.get(self._filled(labels), reading)
            if self.type is MetricType.INFO:
                yield (*labels, str(reading)), 1
            elif isinstance(reading, str):
                yield labels, datetime.fromisoformat(reading).timestamp()
            else:
                yield labels, reading

    def _filled(self, labels: Sequence[str]) -> str:
        """Its path with these keys in place of its braces."""
        keys = iter(labels)
        return _BRACES.sub(lambda _: next(keys), self.path)

    def beside(self, value: Any, labels: Sequence[str]) -> dict[str, str]:
        """Labels of the exemplar of the sample with these labels; none where one of them is not known."""
        fields, keys = _labels_of(self.exemplar) if self.exemplar else [], iter(labels)
        for part in self.path.split(".")[:-1] if fields else ():
            value = value[next(keys) if _BRACES.fullmatch(part) else part]
        found = {label: value.get(name) for label, name in fields}
        return {} if None in found.values() else {label: str(each) for label, each in found.items()}


_BRACES = re.compile(r"\{([^}]*)\}")
GAUGE, COUNTER, HISTOGRAM, INFO = MetricType
_WORKER = "workers.{worker}"
_WINDOW = f"{_WORKER}.windows.{{task}}"
_COUNTS = "counts"

RUN = (
    Metered("exfm_run_state", INFO, "state", "State of the run."),
    Metered("exfm_run_updated_timestamp_seconds", GAUGE, "updated_at", "When the coordinator last wrote its status."),
    Metered("exfm_run_seconds", COUNTER, "wall_s", "Time that the run has run, over all its starts."),
    Metered("exfm_run_starts", COUNTER, "legs", "Starts of the coordinator."),
    Metered("exfm_run_progress_ratio", GAUGE, "fraction", "Share of a bounded stream that is learned."),
    Metered("exfm_run_losses", INFO, "losses.severity", "Severity of what was lost: fine, warn or fail."),
    Metered(
        "exfm_alarm_seconds",
        GAUGE,
        "alarms.{alarm=state,severity,about}.for_s",
        "Age of each active alarm; `about` is the worker, task or topic that it concerns.",
    ),
    Metered("exfm_webhook_notices", COUNTER, "webhooks.sent", "Notices of alarms that were sent."),
    Metered("exfm_webhook_failures", COUNTER, "webhooks.failed", "Notices that no one took."),
    # Workers
    Metered("exfm_worker_state", INFO, f"{_WORKER}.state", "State of a worker."),
    Metered(
        "exfm_worker_rows",
        COUNTER,
        f"{_WORKER}.rows",
        "Rows that a worker has read or learned; OpenMetrics has the range of the lake that it did last as exemplar.",
        exemplar="lake_from,lake_to=lake_seq",
    ),
    Metered("exfm_worker_rows_per_second", GAUGE, f"{_WORKER}.rows_per_s", "Rows a second, lately."),
    Metered("exfm_worker_lag_rows", GAUGE, f"{_WORKER}.lag_rows", "Rows that wait for a worker."),
    Metered("exfm_worker_lag_event_seconds", GAUGE, f"{_WORKER}.lag_event_time_s", "Event time behind the clock."),
    Metered("exfm_worker_lake_seq", GAUGE, f"{_WORKER}.lake_seq", "Last row of the lake that a worker has reached."),
    Metered("exfm_worker_busy_seconds", COUNTER, f"{_WORKER}.busy_s", "Time at work, without waiting."),
    Metered("exfm_worker_phase_seconds", COUNTER, f"{_WORKER}.phases_s.{{phase}}", "Time by phase; `train` is steps."),
    Metered("exfm_worker_cpu_seconds", COUNTER, f"{_WORKER}.cpu_s.{{phase}}", "CPU time by phase, of all threads."),
    Metered("exfm_worker_memory_bytes", GAUGE, f"{_WORKER}.rss_bytes", "Resident memory; summed over ranks."),
    Metered("exfm_worker_memory_peak_bytes", GAUGE, f"{_WORKER}.peak_rss_bytes", "Peak of the resident memory."),
    Metered("exfm_worker_restarts", COUNTER, f"{_WORKER}.restarts", "Restarts of a worker."),
    Metered("exfm_worker_silent_seconds", GAUGE, f"{_WORKER}.silent_s", "Time without a report although asked."),
    Metered("exfm_rank_rows", COUNTER, f"{_WORKER}.ranks.{{rank,node}}.rows", "Rows read by one rank of a worker."),
    Metered("exfm_rank_memory_bytes", GAUGE, f"{_WORKER}.ranks.{{rank,node}}.rss_bytes", "Resident memory of a rank."),
    # Topics and settlement
    Metered("exfm_partition_lag_rows", GAUGE, f"{_WORKER}.lag.{{partition}}", "Rows of a partition still to be read."),
    Metered(
        "exfm_partition_event_timestamp_seconds",
        GAUGE,
        f"{_WORKER}.reached.{{partition}}",
        "Latest event time that a partition has brought.",
    ),
    Metered(
        "exfm_settlement_watermark_timestamp_seconds",
        GAUGE,
        f"{_WORKER}.watermark",
        "Event time up to which all topics have been read.",
    ),
    Metered("exfm_impressions_read", COUNTER, f"{_COUNTS}.impressions_read", "Impressions read."),
    Metered("exfm_impressions_settled", COUNTER, f"{_COUNTS}.settled.{{group}}", "Impressions whose labels settled."),
    Metered("exfm_impressions_pending", GAUGE, f"{_COUNTS}.pending.{{group}}", "Impressions whose window is open."),
    Metered("exfm_impressions_duplicate", COUNTER, f"{_COUNTS}.duplicates_dropped", "Impressions that came again."),
    Metered("exfm_feedback_read", COUNTER, f"{_COUNTS}.feedback_read", "Rows of feedback read."),
    Metered("exfm_feedback_joined", COUNTER, f"{_COUNTS}.joined_feedback", "Feedback that became a label."),
    Metered("exfm_feedback_late", COUNTER, f"{_COUNTS}.late_feedback", "Feedback that came after its window."),
    Metered("exfm_feedback_unmatched", COUNTER, f"{_COUNTS}.unmatched_feedback", "Feedback without an impression."),
    Metered("exfm_feedback_duplicate", COUNTER, f"{_COUNTS}.duplicate_feedback", "Feedback that came again."),
    Metered("exfm_feedback_waiting", GAUGE, f"{_COUNTS}.waiting_feedback", "Feedback whose impression may still come."),
    Metered(
        "exfm_dead_letters",
        COUNTER,
        f"{_COUNTS}.dead_letters_by_reason.{{kind}}.{{reason}}",
        "Rows refused; of feedback, `unknown_impression` is what is unmatched.",
    ),
    Metered("exfm_teacher_inferences", COUNTER, f"{_COUNTS}.teacher_inferences", "Rows scored by the teacher."),
    # Teacher and students
    Metered("exfm_teacher_version", GAUGE, f"{_WORKER}.teacher_version", "Snapshot: published, used, or last learned."),
    Metered("exfm_teacher_lag_rows", GAUGE, f"{_WORKER}.teacher_lag_rows", "Rows that the scoring snapshot lacks."),
    Metered("exfm_logit_age_seconds", GAUGE, f"{_WORKER}.logit_age_s", "From the last row's event to its logit."),
    Metered("exfm_teacher_age_seconds", GAUGE, f"{_WORKER}.teacher_age_s", "Age of the snapshot that scores."),
    Metered("exfm_quarantined_rows", COUNTER, f"{_WORKER}.quarantined_rows", "Rows left out as not finite."),
    Metered(
        "exfm_ne_ratio",
        GAUGE,
        f"{_WINDOW}.ne.{{model}}",
        "NE of the last 20,000 rows, predicted before they were learned: of student, twin, champion. 1: base rate.",
    ),
    Metered(
        "exfm_calibration_ratio",
        GAUGE,
        f"{_WINDOW}.calibration.{{model}}",
        "Predicted over actual positives of the same rows.",
    ),
    Metered("exfm_gain_ratio", GAUGE, f"{_WINDOW}.gain", "How much lower a student's NE is than its twin's."),
    Metered("exfm_positives_ratio", GAUGE, f"{_WINDOW}.rate", "Share of positives of the same rows."),
    Metered("exfm_window", COUNTER, f"{_WINDOW}.number", "Complete windows; 0: the first one is still open."),
    Metered(
        "exfm_learned_to_logit_seconds",
        HISTOGRAM,
        f"{_WORKER}.freshness.learned_to_logit_s",
        "From a row that the teacher learned to the first logit that knows it.",
    ),
    Metered(
        "exfm_teacher_behind_rows",
        HISTOGRAM,
        f"{_WORKER}.freshness.behind_rows",
        "Age of the teacher at learning: rows from the last one that it had learned to the row of its logit.",
    ),
    Metered(
        "exfm_teacher_behind_seconds",
        HISTOGRAM,
        f"{_WORKER}.freshness.behind_s",
        "The same in event time.",
    ),
    Metered("exfm_student_champion", INFO, f"{_WORKER}.versions.champion", "Version that is served."),
    # Bytes
    Metered("exfm_settlement_state_bytes", GAUGE, f"{_WORKER}.state_bytes", "Memory of what has not settled."),
    Metered("exfm_lake_rows", GAUGE, "lake.rows", "Rows of the lake."),
    Metered("exfm_lake_files", GAUGE, "lake.files", "Files of the lake."),
    Metered("exfm_lake_bytes", GAUGE, "lake.bytes", "Bytes of the lake."),
    Metered("exfm_disk_bytes", GAUGE, "disk.{part}", "Bytes in the run directory, by what grows in it."),
    Metered("exfm_disk_free_bytes", GAUGE, "disk_free_bytes", "Bytes that are free where the run lies."),
    Metered("exfm_tracking_dropped", COUNTER, "tracking.dropped", "Entries that MLflow did not take."),
)
"""Metrics of a run."""

SERVER = (
    Metered("exfm_requests", COUNTER, "models.{model}.requests.{code}", "Requests by HTTP code."),
    Metered("exfm_rows", COUNTER, "models.{model}.rows", "Rows predicted."),
    Metered("exfm_refused_rows", COUNTER, "models.{model}.refused_rows", "Rows refused."),
    Metered("exfm_request_seconds", HISTOGRAM, "models.{model}.seconds", "Time of a request."),
    Metered("exfm_version_info", INFO, "models.{model}.version", "Version that answers."),
    Metered("exfm_version_age_seconds", GAUGE, "models.{model}.version_age_s", "Time since the version was loaded."),
    Metered("exfm_freshness_seconds", HISTOGRAM, "models.{model}.answered_s", "From a step to its first answer."),
    Metered("exfm_step_to_served_seconds", HISTOGRAM, "models.{model}.served_s", "From a step to its version."),
    Metered("exfm_asof_age_seconds", GAUGE, "asof_age_s", "Time since the as-of state was written."),
    Metered("exfm_swaps", COUNTER, "swaps", "Versions taken up."),
    Metered("exfm_refused_versions", COUNTER, "refused_versions", "Versions refused."),
    Metered("exfm_log_written_rows", COUNTER, "log.written", "Served rows that the broker has acknowledged."),
    Metered("exfm_log_dropped_rows", COUNTER, "log.dropped", "Served rows that were not logged."),
    Metered("exfm_log_unidentified_rows", COUNTER, "log.unidentified", "Served rows without the id of an impression."),
)
"""Metrics of a server (`exfm serve`), each with the label `process`."""


class Tracked(NamedTuple):
    """A series of MLflow: its name, in which a part in braces stands for any text, its unit, its meaning, and the
    metric of RUN that has the same figure, if one does."""

    name: str
    unit: str
    meaning: str
    metric: str = ""


_JUDGED = "of the window that the closing screen judges"
MLFLOW = (
    # While a teacher or a student learns; the step is the row of the lake, of a student the rows that it has learned
    Tracked("ne_{task}", "ratio", "NE of the last 20,000 rows, predicted before they were learned.", "exfm_ne_ratio"),
    Tracked("auc_{task}", "ratio", "AUC of the same rows."),
    Tracked(
        "calibration_{task}", "ratio", "Predicted over actual positives of the same rows.", "exfm_calibration_ratio"
    ),
    Tracked(
        "freshness/learned_to_logit_s_{quantile}",
        "seconds",
        "From a row that the teacher learned to the first logit that knows it; of the teacher.",
        "exfm_learned_to_logit_seconds",
    ),
    Tracked(
        "freshness/behind_rows_{quantile}",
        "rows",
        "Rows from the last one that the teacher had learned to the row of its logit; of a student.",
        "exfm_teacher_behind_rows",
    ),
    Tracked("freshness/behind_s_{quantile}", "seconds", "The same in event time.", "exfm_teacher_behind_seconds"),
    Tracked("platt_scale_{task}", "ratio", "Platt's scale a, by which a student takes the teacher's logits."),
    Tracked("platt_shift_{task}", "logits", "Platt's shift b."),
    Tracked("residual_weight_{feature}_{task}", "ratio", "Weight of a feature's residuals in Platt's correction."),
    Tracked("adapter_shift_{task}", "logits", "Correction of a teacher that predicts one half."),
    Tracked("teacher_weight_{task}", "ratio", "Factor of the loss on the teacher's logits."),
    Tracked("adapter_weight_{task}", "ratio", "Factor of the loss on corrected logits."),
    # At the end of a run, of every student; the step is the number of rows
    Tracked("final/{task}/positives", "rows", f"Positives {_JUDGED}."),
    Tracked("final/{task}/{model}/ne", "ratio", f"NE {_JUDGED}."),
    Tracked("final/{task}/{model}/auc", "ratio", f"AUC {_JUDGED}."),
    Tracked("final/{task}/{model}/log_loss", "nats", f"Log loss {_JUDGED}."),
    Tracked("final/{task}/{model}/calibration", "ratio", f"Predicted over actual positives {_JUDGED}."),
    Tracked("final/{task}/{model}/gauc", "ratio", f"AUC within groups, on average, {_JUDGED}."),
    Tracked("final/{task}/gain", "% of the twin's NE", "How much lower a student's NE is than its twin's."),
    Tracked("final/{task}/gain_low", "% of the twin's NE", "Lower end of its 95 % interval."),
    Tracked("final/{task}/gain_high", "% of the twin's NE", "Upper end of its 95 % interval."),
    Tracked("final/{task}/transfer_ratio", "ratio", "Share of the teacher's lead over the twin that a student has."),
    # Of a replay or a sweep; one step
    Tracked("{task}/gain_value", "% of the twin's NE", "How much lower the NE of the chosen arm is than its twin's."),
    Tracked("{task}/gain_low", "% of the twin's NE", "Lower end of its 95 % interval."),
    Tracked("{task}/gain_high", "% of the twin's NE", "Upper end of its 95 % interval."),
)
"""Series of MLflow: those of a run are in the MLflow run of each worker, those of a replay in one of its own."""

DOUBLINGS = tuple(2.0**k for k in range(-4, 25))
"""Upper bounds of a run's histograms. Their own are finer, and move with the largest value."""


def exposition(
    catalogue: Sequence[Metered],
    value: Mapping[str, Any],
    labels: Mapping[str, str],
    accept: str = "",
) -> tuple[bytes, str]:
    """Prometheus' text of what `value` has of the catalogue, and its content type. `labels` stand before every sample's
    own; `accept`: header of the request, which may ask for OpenMetrics.

    >>> text, _ = exposition(RUN, {"state": "running", "lake": {"rows": 5}}, {"run": "demo"})
    >>> [line for line in text.decode().splitlines() if not line.startswith("#")]
    ['exfm_run_state{run="demo",state="running"} 1.0', 'exfm_lake_rows{run="demo"} 5.0']
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

    class Families(Collector):
        def collect(self) -> Iterable[Metric]:
            return _families(catalogue, value, labels)

    registry = CollectorRegistry()
    registry.register(Families())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _families(catalogue: Sequence[Metered], value: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily

    for series in catalogue:
        readings = list(series.readings(value))
        if not readings:
            continue
        names = (*labels, *series.labels)
        if series.type is MetricType.HISTOGRAM:
            histogram = HistogramMetricFamily(series.name, series.meaning, labels=names)
            for own, reading in readings:
                histogram.add_metric((*labels.values(), *own), _cumulative(reading["histogram"]), reading.get("sum"))
            yield histogram
            continue
        if series.type is MetricType.COUNTER:
            counter = CounterMetricFamily(series.name, series.meaning, labels=names)
            for own, reading in readings:
                number, beside = float(reading), series.beside(value, own)
                exemplar = Exemplar(beside, number) if beside else None
                counter.add_metric((*labels.values(), *own), number, exemplar=exemplar)
            yield counter
            continue
        gauge = GaugeMetricFamily(series.name, series.meaning, labels=names)
        for own, reading in readings:
            gauge.add_metric((*labels.values(), *own), float(reading))
        yield gauge


def _cumulative(pairs: Sequence[tuple[float, int]]) -> list[tuple[str, float]]:
    """Numbers up to each bound. Bounds that end with infinity are fixed; others become DOUBLINGS."""
    fixed = bool(pairs) and pairs[-1][0] == inf
    bounds = [bound for bound, _ in pairs] if fixed else [*DOUBLINGS, inf]
    counted = [(upto, float(sum(count for bound, count in pairs if bound <= upto))) for upto in bounds]
    return [("+Inf" if upto == inf else str(upto), number) for upto, number in counted]


def _labels_of(braces: str) -> list[tuple[str, str]]:
    """Names of labels and of their fields."""
    return [(label, field or label) for label, _, field in (each.partition("=") for each in braces.split(","))]


def _readings(parts: Sequence[str], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not parts:
        yield (), value
        return
    part, rest = parts[0], parts[1:]
    braces = _BRACES.fullmatch(part)
    if braces is None:
        if isinstance(value, Mapping) and part in value:
            yield from _readings(rest, value[part])
        return
    items: list[tuple[tuple[str, ...], Any]]
    if isinstance(value, Mapping):
        items = [((str(key),), inner) for key, inner in value.items()]
    else:
        fields = [field for _, field in _labels_of(braces[1])]
        items = [(tuple(str(inner.get(field, "")) for field in fields), inner) for inner in value or ()]
    for own, inner in items:
        for labels, reading in _readings(rest, inner):
            yield (*own, *labels), reading
