from typing import get_args

import pyarrow as pa
import pytest
import torch
import torch.distributed as dist

from exfm.embeddings.weights import draw_initial_weights, initial_weights
from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import BY_COLUMNS, Sharding, ShardingType

FEATURES = FeatureSet(sparse=[SparseFeature(name="ad", rows=50), SparseFeature(name="user", rows=81)])
CFG = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))


@pytest.fixture(autouse=True)
def no_group_is_open():
    """A worker that crashed in this process, in a test of crashes, has left its group open."""
    if dist.is_initialized():
        dist.destroy_process_group()


def test_groups_of_one_process_share_it_until_the_last_is_closed():
    one, two = RankGroup(), RankGroup()
    one.close()
    one.close()
    assert dist.is_initialized()
    two.close()
    assert not dist.is_initialized()


def test_wrong_ranks_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"rank 2 is not in a world of 2"):
        RankGroup(2, 2)
    with pytest.raises(ConfigError, match="a world of 2 ranks needs a master_port"):
        RankGroup(0, 2)
    with RankGroup(), pytest.raises(ConfigError, match="rank 1 of 2 was asked for in a process that is rank 0 of 1"):
        RankGroup(1, 2, master_port=1)


@pytest.mark.parametrize("cut", get_args(ShardingType))
def test_tables_start_the_same_and_are_read_whole_however_they_are_cut(cut):
    cfg = CFG.model_copy(update={"width": 8, "sparse_optimizer": "adagrad"})
    with RankGroup() as group:
        teacher = Teacher(cfg, FEATURES, ["ctr"], 0, group=group, sharding=Sharding(types=(cut,)))
        for feature in FEATURES.sparse:
            assert teacher.plan.plan["tables"][feature.name].sharding_type == cut
            initial = initial_weights(feature.name, feature.rows, 8, 0)
            assert torch.equal(teacher.snapshot()[f"table/{feature.name}/weight"], initial)


@pytest.mark.parametrize("chunk", [1, 60, 1000])
def test_any_window_of_the_initial_weights_is_drawn_without_the_rest(chunk, monkeypatch):
    monkeypatch.setattr("exfm.embeddings.weights.CHUNK", chunk)
    whole = initial_weights("ad", 50, 8, 3)
    windows = [((0, 0), torch.empty(13, 8)), ((13, 4), torch.empty(30, 4)), ((49, 0), torch.empty(1, 2))]
    draw_initial_weights("ad", 50, 8, 3, windows)
    for (row, column), window in windows:
        assert torch.equal(window, whole[row : row + len(window), column : column + window.shape[1]])


def test_a_teacher_without_a_group_opens_and_closes_its_own():
    teacher = Teacher(CFG, FEATURES, ["ctr"], 0)
    assert dist.is_initialized()
    teacher.close()
    assert not dist.is_initialized()


def test_a_table_that_does_not_exist_is_named_with_its_nearest_neighbours():
    with pytest.raises(ConfigError, match=r"names `usr`, which is not a table; did you mean user\?"):
        Teacher(CFG, FEATURES, ["ctr"], 0, sharding=Sharding(tables={"usr": "row_wise"}))
    with pytest.raises(ConfigError, match="names `xyz`, which is not a table; choose from ad, user"):
        Sharding(tables={"xyz": "row_wise"}).check(["ad", "user"], "adagrad")


@pytest.mark.parametrize("cut", sorted(BY_COLUMNS))
def test_row_wise_adagrad_on_a_table_cut_by_columns_is_refused_with_the_reason(cut):
    with pytest.raises(
        ConfigError, match=rf"table `user` may be cut by columns \({cut}\).*mean over the columns of each"
    ):
        Teacher(CFG, FEATURES, ["ctr"], 0, sharding=Sharding(tables={"user": cut}))
    Sharding(tables={"user": cut}).check(["user"], "adagrad")
    Sharding(tables={"user": cut}, per_shard_row_wise=True).check(["user"], "row_wise_adagrad")


def test_an_accumulator_per_piece_is_kept_and_restored_when_opted_into():
    cfg = CFG.model_copy(update={"width": 8})
    sharding = Sharding(types=("column_wise",), per_shard_row_wise=True)
    with RankGroup() as group:
        teacher = Teacher(cfg, FEATURES, ["ctr"], 0, group=group, sharding=sharding)
        build = BatchBuilder(FEATURES, ["ctr"])
        batch = build(pa.table({"ad": [1, 2, 3], "user": [4, 5, 6], "label_ctr": pa.array([0, 1, 1], pa.int8())}))
        for _ in range(3):
            assert teacher.train_step(batch).finite
        state = teacher.state()
        assert state["table/ad/accumulator"].shape == (50, 2)
        assert state["table/ad/accumulator"].any(0).all()
        other = Teacher(cfg, FEATURES, ["ctr"], 1, group=group, sharding=sharding)
        other.load_state(state)
        assert teacher.train_step(batch).loss == other.train_step(batch).loss
        assert all(torch.equal(v, other.state()[k]) for k, v in teacher.state().items())


def test_tables_that_do_not_fit_are_refused_with_what_is_needed_available_and_to_try():
    features = FeatureSet(sparse=[*FEATURES.sparse, SparseFeature(name="url", rows=2_000_000)])
    asked = Sharding(memory_gb=0.02)
    message = (
        r"do not fit on 1 ranks of 0.02 GB: the largest, `url`{} \(2000000 rows, may be table_wise\), needs {} GB, all "
        r"need {} GB and a step's buffers, and there are 0.02 GB on all ranks. Try row_wise for `url`, more ranks"
    )
    with pytest.raises(ConfigError, match=message.format("", 0.04, 0.04)):
        Teacher(CFG.model_copy(update={"wide": False}), features, ["ctr"], 0, sharding=asked)
    with pytest.raises(ConfigError, match=message.format(" of the linear part", 0.064, 0.104)):
        Teacher(CFG, features, ["ctr"], 0, sharding=asked)


def test_ranks_that_do_not_fill_their_hosts_are_refused():
    with pytest.raises(ConfigError, match="1 ranks do not fill hosts of 2"):
        Teacher(CFG, FEATURES, ["ctr"], 0, sharding=Sharding(types=("table_row_wise",), ranks_per_host=2))


def test_a_width_that_fbgemm_cannot_take_is_refused():
    with pytest.raises(ConfigError, match="table `ad` is 6 wide; FBGEMM needs a multiple of 4"):
        Teacher(CFG.model_copy(update={"width": 6}), FEATURES, ["ctr"], 0)


def test_more_rows_than_fbgemm_can_count_are_refused_before_they_are_allocated():
    features = FeatureSet(sparse=[SparseFeature(name="url", rows=3_000_000_000)])
    with pytest.raises(ConfigError, match=r"`url` has 3000000000 rows.*at most 2147483647.*row_wise over 2 ranks"):
        Teacher(CFG, features, ["ctr"], 0)
