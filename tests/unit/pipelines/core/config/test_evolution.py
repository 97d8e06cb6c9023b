"""Which configs a run may go on under, what is said of it, and which checkpoints it takes up then."""

from __future__ import annotations

import pytest
import torch
import yaml

from exfm.errors import Unusable
from exfm.snapshots.checkpoint import save_checkpoint
from pipelines.core.config.evolve import evolution
from pipelines.core.config.lineage import accepted_identities, remember
from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop import preflight
from pipelines.live.workers.checkpointer import last_checkpoint
from streaming.errors import BadInput, StreamingError
from tests.support.pipelines.raw_configs import small

AGE = {"name": "age", "column": "bid", "transform": "bucketize", "boundaries": [0.5, 1.0]}


def config(sparse=None, dense=None, only=("user_id",), **changes) -> Config:
    features = small()["features"]
    features = {"sparse": sparse or features["sparse"], "dense": features["dense"] if dense is None else dense}
    return parse(small(features=features, teacher={"only": list(only)}, **changes))


def sparse(*more, **rows):
    """The two that are there, with so many rows, and more."""
    return [f | {"rows": rows.get(f["name"], f["rows"])} for f in small()["features"]["sparse"]] + list(more)


BEFORE = config()


def refused(now: Config, drop=()) -> str:
    with pytest.raises(BadInput) as error:
        evolution(BEFORE, now, drop)
    return str(error.value)


def test_what_will_be_done_is_said_line_by_line_with_the_students_it_concerns():
    now = config(sparse(AGE, user_id=200, ad_id=60), only=["user_id", "age"])
    grows = "rows: row i starts as a copy of row i mod"
    first, second, third, fourth = evolution(BEFORE, now)
    assert first.startswith(f"`user_id` grows from 100 to 200 {grows} 100")
    assert second.startswith(f"`ad_id` grows from 20 to 60 {grows} 20")
    assert third == "`age` is added: its table of 3 rows starts from the seed, its slices of the dense part from 0"
    assert fourth == "`ad_id` is read by students too: feed, shop; theirs grows alike"


def test_students_that_list_their_features_leave_a_new_one_to_the_teacher():
    raw = yaml.safe_load(dump(config(sparse(AGE))))
    for student in raw["students"]:
        student["features"] = ["ad_id", "bid"]
    assert [line[:14] for line in evolution(BEFORE, parse(raw))] == ["`age` is added"]


def test_a_student_never_gets_a_feature_it_did_not_begin_with():
    said = refused(config(sparse(AGE)))
    assert said.startswith("student `feed` would read the new feature `age`, and keeps the features it began with")
    assert "add `age` to teacher.only, or give students.feed.features the list ['ad_id', 'bid']" in said
    assert "student `feed` would read the new feature `user_id`" in refused(config(only=[]))
    assert "student `feed` reads `bid`, and keeps" in refused(config(dense=[]), drop=["bid"])


def test_features_are_dropped_only_by_name():
    fewer = config([f for f in sparse() if f["name"] != "user_id"], only=[])
    assert "`user_id` would be dropped" in refused(fewer)
    assert "--drop user_id" in refused(fewer)
    assert evolution(BEFORE, fewer, ["user_id"])[0].startswith("`user_id` is dropped: its table and slices")
    assert refused(BEFORE, ["user_id"]).startswith("--drop user_id: the config still has that feature")


def test_what_has_no_rule_is_refused():
    assert "`user_id` had 100 rows, and 150 are wanted" in refused(config(sparse(user_id=150)))
    more = "more than features, kinds of the teacher's tables, columns and partitions differ"
    assert refused(config(sparse(user_id=200), seed=2)) == more


def of_kind(kind, optimizer: str = "adagrad") -> Config:
    raw = yaml.safe_load(dump(BEFORE))
    raw["teacher"]["model"] |= {"sparse_optimizer": optimizer, "embeddings": {"user_id": kind} if kind else {}}
    return parse(raw)


def test_a_full_table_may_become_chunks_that_are_all_kept_and_no_other_kind_another():
    kept = {"kind": "fiited", "keep": 1}
    (said,) = evolution(of_kind(None), of_kind(kept))
    assert said == "`user_id` becomes `fiited`: the teacher's table is cut in chunks, and nothing it says changes"
    for before, now, words in (
        (of_kind(None, "row_wise_adagrad"), of_kind(kept, "row_wise_adagrad"), "wanted as `fiited, keep: 1.0`"),
        (of_kind(None), of_kind(kept | {"rows": 50}), "keep: 1.0, rows: 50"),
        (of_kind(None), of_kind({"kind": "fiited"}), "was `full`, and is wanted as `fiited`"),
        (of_kind(kept), of_kind(None), "was `fiited, keep: 1.0`, and is wanted as `full`"),
        (of_kind(None), of_kind({"kind": "qr"}), "was `full`, and is wanted as `qr`"),
        (of_kind({"kind": "managed", "rows": 30}), of_kind({"kind": "managed", "rows": 40}), "rows: 30`, .* rows: 40`"),
    ):
        with pytest.raises(
            BadInput, match=rf"table `user_id` .*{words}.* Exact is only `full` to `fiited` with `keep: 1`"
        ):
            evolution(before, now)


def with_topics(impressions, feedback, **changes) -> Config:
    topics = {"impressions": {"partitions": impressions}, "feedback": {"partitions": feedback}}
    return config(kafka=topics, **changes)


def test_topics_that_others_feed_may_have_more_partitions_each_for_itself():
    before = with_topics(2, 2, source=None)
    (only,) = evolution(before, with_topics(4, 2, source=None))
    assert only.startswith(
        "topic `impressions` is read in 4 partitions, 2 until now: what lies in those that were added"
    )
    assert len(evolution(before, with_topics(4, 3, source=None))) == 2


def test_topics_are_never_read_in_fewer_partitions():
    with pytest.raises(BadInput, match=r"kafka\.feedback\.partitions was 4, and 2 are wanted; .* put 4 back"):
        evolution(with_topics(2, 4, source=None), with_topics(2, 2, source=None))


def test_topics_that_the_run_fills_itself_keep_their_partitions():
    with pytest.raises(BadInput, match=r"kafka\.impressions\.partitions was 2, and 4 are wanted; `source` fills them"):
        evolution(with_topics(2, 2), with_topics(4, 4))


# --- the run directory -----------------------------------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir(tmp_path / "run")
    prepare(BEFORE, run_dir)
    return run_dir


def own(now: Config, worker: str = "teacher") -> set[str]:
    """What a worker's checkpoints of this config say."""
    return {now.identity(worker)}


def accepted(run_dir: RunDir, now: Config, worker: str = "teacher") -> set[str]:
    return set(accepted_identities(run_dir, now, worker))


def prepare(now: Config, run_dir: RunDir, **options) -> list[str]:
    said: list[str] = []
    with preflight.locked(run_dir):
        preflight.prepare(now, run_dir, say=said.append, **options)
    return said


def test_a_run_grows_only_when_it_is_asked_to_and_from_then_on_is_that_run(run_dir):
    grown = config(sparse(user_id=200))
    with pytest.raises(BadInput, match=r"was 100, is 200.* Or continue it with --evolve: `user_id` grows"):
        prepare(grown, run_dir)
    assert accepted(run_dir, grown) == own(grown)
    assert prepare(grown, run_dir, evolve=True)[0].startswith("`user_id` grows from 100 to 200 rows")
    assert prepare(grown, run_dir) == []
    assert accepted(run_dir, grown) == own(grown) | own(BEFORE)
    with pytest.raises(BadInput, match="was 200, is 100"):  # and does not shrink back
        prepare(BEFORE, run_dir)
    with pytest.raises(BadInput, match="--evolve cannot: `user_id` had 200 rows, and 100 are wanted"):
        prepare(BEFORE, run_dir, evolve=True)


def test_other_differences_are_refused_with_evolve_too(run_dir):
    with pytest.raises(BadInput, match=r"seed was 1, is 2.* --evolve cannot: more than features, kinds of "):
        prepare(config(sparse(user_id=200), seed=2), run_dir, evolve=True)
    assert not run_dir.lineage.exists()


def test_checkpoints_of_every_config_it_came_from_are_taken_up_and_of_no_other(run_dir, tmp_path):
    grown, more = config(sparse(user_id=200)), config(sparse(AGE, user_id=200), only=["user_id", "age"])
    prepare(grown, run_dir, evolve=True)
    prepare(more, run_dir, evolve=True)
    assert accepted(run_dir, more) == own(more) | own(grown) | own(BEFORE)
    assert accepted(run_dir, grown) == own(grown) | own(BEFORE)  # what came after it is none of its own
    root = run_dir.checkpoints("teacher")
    save_checkpoint(root, "v1", {"w": torch.zeros(1)}, {"config_hash": BEFORE.identity("teacher"), "lake_seq": 1})
    found = last_checkpoint(root, more.identity("teacher"), accepted(run_dir, more))
    assert found.stored is not None
    assert found.note is None
    another = config(seed=2)
    with pytest.raises(Unusable, match=f"was written under config {BEFORE.identity('teacher')}, this run has"):
        last_checkpoint(root, another.identity("teacher"), accepted(run_dir, another))


def test_a_crash_between_the_two_files_is_made_up_for(run_dir):
    """The lineage is written first: the run is still the old one, and asked again the same is done once."""
    grown = config(sparse(user_id=200))
    remember(run_dir, yaml.safe_load(run_dir.config.read_text()), grown, ["said"])
    assert prepare(BEFORE, run_dir) == []
    assert accepted(run_dir, BEFORE) == own(BEFORE)
    prepare(grown, run_dir, evolve=True)
    assert accepted(run_dir, grown) == own(grown) | own(BEFORE)


@pytest.mark.parametrize("text", ["{", "5", '[{"from": "a"}]', '["a"]'])
def test_a_damaged_lineage_is_told(run_dir, text):
    run_dir.lineage.write_text(text)
    with pytest.raises(StreamingError, match=r"lineage\.json is damaged"):
        accepted(run_dir, BEFORE)
