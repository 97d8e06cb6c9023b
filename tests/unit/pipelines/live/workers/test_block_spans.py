"""Spans of a worker's steps: one trace a block, whichever process makes them; sampled alike; refused where they cannot
be exported."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.block_spans import EXPORTER, BlockRows, BlockSpans, check_spans, spans_of, trace_id
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import small
from tests.support.waiting import PATIENCE_S, eventually

ONE, TWO = BlockRows(1, 5, 10, 14), BlockRows(2, 3, 15, 17)


def made(worker, phases, *noted):
    """Spans of a worker that went through these phases, then noted blocks."""
    kept, watch = InMemorySpanExporter(), Stopwatch()
    spans = BlockSpans("demo", worker, "a lake", watch, [kept])
    for phase in phases:
        with watch(phase):
            pass
    for blocks, root in noted:
        spans.note(blocks, root=root)
    spans.close()
    return kept.get_finished_spans()


def test_two_processes_make_one_trace_of_a_block_without_telling_each_other():
    commits = made("augmentation", ["poll", "decode", "settle", "score", "poll", "commit"], ([ONE], True))
    learns = made("student-feed", ["metrics", "train", "train twin"], ([ONE, TWO], False))
    root = next(span for span in commits if span.parent is None)
    assert [span.name for span in commits] == ["block", "read", "settle", "score", "commit"]
    assert [span.name for span in learns] == ["learn", "learn"]
    assert f"{root.context.trace_id:032x}" == trace_id("a lake", 1)
    assert {span.parent.span_id for span in (*commits[1:], learns[0])} == {root.context.span_id}
    assert learns[0].context.trace_id == root.context.trace_id != learns[1].context.trace_id
    assert dict(learns[1].attributes) | {"exfm.busy_s": 0} == {
        "exfm.run": "demo", "exfm.worker": "student-feed", "exfm.block": 2, "exfm.rows": 3,
        "exfm.lake_seq.first": 15, "exfm.lake_seq.last": 17, "exfm.busy_s": 0,
    }  # fmt: skip
    read = commits[1]
    assert root.start_time == read.start_time < read.end_time < root.end_time == commits[-1].end_time
    assert len({span.context.span_id for span in (*commits, *learns)}) == 7


def test_a_collector_that_does_not_answer_keeps_no_worker_from_its_end():
    answers, watch = threading.Event(), Stopwatch()

    class Silent(InMemorySpanExporter):
        def export(self, spans):
            assert answers.wait(PATIENCE_S)
            return super().export(spans)

    kept = Silent()
    spans = BlockSpans("demo", "teacher", "a lake", watch, [kept])
    with watch("train"):
        pass
    spans.note([ONE])
    spans.close()
    assert kept.get_finished_spans() == ()
    answers.set()
    eventually(kept.get_finished_spans)


def test_phases_between_two_blocks_belong_to_the_later_one():
    kept, watch = InMemorySpanExporter(), Stopwatch()
    spans = BlockSpans("demo", "augmentation", "a lake", watch, [kept])
    with watch("settle"):
        pass
    spans.note([ONE], root=True)
    spans.note([TWO], root=True)  # nothing was measured since
    with watch("settle"):
        pass
    spans.note([TWO], root=True)
    spans.close()
    assert [(span.name, span.attributes["exfm.block"]) for span in kept.get_finished_spans()] == [
        ("block", 1), ("settle", 1), ("block", 2), ("settle", 2),
    ]  # fmt: skip


def test_every_process_leaves_out_the_same_blocks_where_some_are_sampled(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    blocks = [BlockRows(number, 1, number, number) for number in range(100)]
    commits, learns = (
        {span.attributes["exfm.block"] for span in made(worker, ["commit", "train"], (blocks, root))}
        for worker, root in (("augmentation", True), ("teacher", False))
    )
    assert commits == learns
    assert 20 < len(commits) < 80


def test_nothing_is_made_unless_asked_for_and_an_exporter_that_is_not_there_is_refused(tmp_path, monkeypatch):
    run_dir = RunDir(tmp_path)
    assert spans_of(parse(small()), run_dir, "teacher", "a lake", Stopwatch()) is None
    asked = parse(small(tracking={"spans": True}))
    monkeypatch.setenv(EXPORTER, "console, none")
    check_spans(asked)
    monkeypatch.setenv(EXPORTER, "carrier_pigeon")
    check_spans(parse(small()))
    with pytest.raises(BadInput, match=r"carrier_pigeon.*choose from console, none"):
        check_spans(asked)
