"""Columns that come, go and widen while a stream runs: what is kept, what is null, and what is refused in words."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import yaml

from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.continuation import settle
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.live_run import CAUGHT_UP
from pipelines.live.rules.states import RunState
from pipelines.live.workers.worker import Orders
from streaming.errors import BadInput
from streaming.lake import compaction
from streaming.lake.delta.files import TableFiles
from tests.support.pipelines.changing_rows import COUPON, declared, feed, lake, live, row, step_until, stepped
from tests.support.pipelines.topics import make_inputs


@pytest.mark.broker
@pytest.mark.parametrize("codec", ["json", "arrow"])
def test_a_new_column_joins_the_lake_from_its_first_row_on(broker, tmp_path, codec):
    config = live(broker.bootstrap_servers, codec=codec)
    make_inputs(config)
    feed(config, *(row(n) for n in range(80)))
    worker = stepped(config, tmp_path / "run", 60)
    feed(config, *(row(n, coupon=f"c{n}", price_cents=n) for n in range(80, 160)))
    step_until(worker, 140)
    feed(config, *(row(n) for n in range(160, 240)))
    step_until(worker, 225)
    worker.close()
    wider = declared(config, COUPON, {"name": "price_cents", "nullable": True})
    found = lake(wider, tmp_path / "run", "coupon", "price_cents")
    expected = [
        {"impression_id": n, "coupon": f"c{n}" if 80 <= n < 160 else None, "price_cents": n if 80 <= n < 160 else None}
        for n in range(len(found))
    ]
    assert found == expected
    assert len(lake(config, tmp_path / "run")) == len(found)  # a reader of before reads on
    table = TableFiles(RunDir(tmp_path / "run").lake)
    by_partition = defaultdict(list)
    for file in table.files:
        by_partition[file.partition].append(file)
    assert all(compaction.merge(table, files) for files in by_partition.values() if len(files) > 1)
    assert len(TableFiles(table.path).files) == len(by_partition)
    assert lake(wider, tmp_path / "run", "coupon", "price_cents") == expected


@pytest.mark.broker
def test_what_stands_in_the_run_directory_decides_and_not_when_a_column_was_noticed(broker, tmp_path):
    """The same messages, in one go and with a stop between: the same rows; and a column that is not to be kept stays
    out."""
    found = []
    for name, undeclared, stop in (("once", "keep", False), ("twice", "keep", True), ("drop", "drop", False)):
        config = live(broker.bootstrap_servers, undeclared=undeclared)
        make_inputs(config)
        feed(config, *(row(n) for n in range(40)), *(row(n, coupon="a") for n in range(40, 60)))
        root = tmp_path / name
        if stop:
            stepped(config, root, 30).abandon()
        feed(config, *(row(n, coupon="b") for n in range(60, 100)))
        stepped(config, root, 85).close()
        kept = config if undeclared == "drop" else declared(config, COUPON)
        found.append(lake(kept, root, *(c.name for c in kept.rows.columns))[:85])
    once, twice, dropped = found
    assert once == twice
    assert [each["coupon"] for each in once[38:62]] == [None] * 2 + ["a"] * 20 + ["b"] * 2
    assert dropped == [{name: value for name, value in each.items() if name != "coupon"} for each in once]


@pytest.mark.broker
def test_a_kept_column_that_changes_its_type_is_refused_row_by_row_and_nothing_is_lost(broker, tmp_path):
    config = live(broker.bootstrap_servers)
    make_inputs(config)
    feed(config, *(row(n, coupon=n) for n in range(40)), *(row(n, coupon=f"c{n}") for n in range(40, 50)))
    more = 2**40  # wider than what came before
    feed(config, *(row(n, coupon=more + n, vertical="brand new") for n in range(50, 90)))
    worker = stepped(config, tmp_path / "run", 65)
    step_until(worker, 65)
    counts = worker.advance(0.0, Orders(teacher_gone=True)).counts
    worker.close()
    assert counts["dead_letters"]["impression"] == {"wrong_type:coupon": 10}
    found = lake(declared(config, {"name": "coupon", "nullable": True}), tmp_path / "run", "coupon", "vertical")
    assert [each["impression_id"] for each in found] == [*range(40), *range(50, 50 + len(found) - 40)]
    assert all(each["coupon"] == each["impression_id"] + 2**40 * (each["vertical"] != "feed") for each in found)
    assert {each["vertical"] for each in found} == {"feed", "brand new"}
    wrong = declared(config, {"name": "coupon", "type": "string", "nullable": True})
    with pytest.raises(BadInput, match="column `coupon` was int64, is string: stored rows would mean something else"):
        run(wrong, RunDir(tmp_path / "run"), local=True, until_idle_s=0.1, evolve=True)


@pytest.mark.slow  # two whole runs
@pytest.mark.broker
def test_a_run_goes_on_with_more_columns_and_with_fewer(broker, tmp_path):
    """Declared by hand: a column more, one that messages lack from now on, bounds that widen. Its teacher and students
    take up where they were."""
    config = declared(live(broker.bootstrap_servers, students=1), interest_0={"maximum": 3})
    make_inputs(config)
    wider = declared(config, COUPON, ad_id={"nullable": True}, interest_0={"maximum": 4})
    shown = [*(row(n, more=n) for n in range(80)), *(row(n, coupon="a", interest_0=4) for n in range(80, 160))]
    gone = [{name: value for name, value in row(n).items() if name != "ad_id"} for n in range(160, 240)]
    feed(config, *shown[:80])
    root = RunDir(tmp_path / "run")

    def caught_up(config: Config, **options: Any) -> list[str]:
        said: list[str] = []
        status, _ = run(config, root, local=True, until_idle_s=0.3, say=said.append, **options)
        assert (status.state, status.reason) == (RunState.STOPPED, CAUGHT_UP)
        return said

    caught_up(config)  # teacher and student read a lake, and examples, with a column that they do not know
    with pytest.raises(BadInput, match=r"Or continue it with --evolve: column `ad_id` may be null"):
        run(wider, root, local=True, until_idle_s=0.3)
    feed(config, *shown[80:], *gone)
    said = caught_up(wider, evolve=True)
    assert [line for line in said if line.startswith("column")] == [
        "column `ad_id` may be null: messages may lack it from now on",
        "column `interest_0`: maximum was 3, is 4",
        "column `coupon` (string) is added: null in rows from before",
    ]
    found = lake(wider, root.root, "coupon", "ad_id")
    assert len(found) > 220
    assert [each["coupon"] for each in found] == [None] * 80 + ["a"] * 80 + [None] * (len(found) - 160)
    assert [each["ad_id"] is None for each in found] == [False] * 160 + [True] * (len(found) - 160)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ad_id": {"type": "string", "minimum": None}}, "column `ad_id` was int64, is string: stored rows would"),
        ({"interest_0": {"maximum": 3}}, "column `interest_0`: maximum was 4, is 3; rows of before may be outside"),
        ({"bid": {"name": "price"}}, r"column `bid` \(float32\) is gone; rows of before have it"),
        ({"new": {"name": "new"}}, r"column `new` \(int64\) is added; rows from before have no value"),
    ],
)
def test_what_no_rule_allows_is_refused_before_anything_is_written(tmp_path, changes, words):
    config = live("nowhere:9")
    root = RunDir(tmp_path)
    root.config.write_text(dump(config))
    raw = yaml.safe_load(dump(config))
    raw["rows"]["columns"] = [c | changes.get(c["name"], {}) for c in raw["rows"]["columns"]]
    raw["rows"]["columns"] += [change for name, change in changes.items() if name == "new"]
    raw["features"] = {"sparse": [{"name": "user_id", "rows": 1000}]}
    raw["teacher"]["only"] = []
    now = parse(raw)
    before = root.config.read_text()
    with pytest.raises(BadInput, match=words):
        settle(now, root, evolve=True, drop=(), say=print)
    assert root.config.read_text() == before
    assert not root.lake.exists()
