import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from exfm.features.dense import LARGEST_INPUT, DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.features.transforms import dense_of


def test_needs_each_raw_column_once_in_order_of_first_use():
    features = FeatureSet(
        sparse=[
            SparseFeature(name="ad", column="ad_id", rows=10),
            SparseFeature(name="user_x_ad", columns=("user_id", "ad_id"), rows=10),
        ],
        dense=[DenseFeature(name="price"), DenseFeature(name="log_price", column="price", transform="log1p")],
    )
    assert features.needs_columns() == ("ad_id", "user_id", "price")


def test_buckets_know_their_rows():
    assert SparseFeature(name="age", transform="bucketize", boundaries=[18, 65]).rows == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 5, "kolumn": "x"}, "kolumn"),
        ({"rows": 0}, "greater than 0"),
        ({"rows": 5, "column": "x", "columns": ["x", "y"]}, "both `column` and `columns`"),
        ({"rows": 5, "columns": ["x"]}, "crosses 1 column"),
        ({"rows": 5, "columns": ["x", "y"], "transform": "index"}, "crosses are hashed"),
        ({"rows": 5, "boundaries": [1]}, "go together"),
        ({"rows": 5, "transform": "bucketize"}, "go together"),
        ({"transform": "bucketize", "boundaries": [2, 1]}, "ascend"),
        ({"rows": 9, "transform": "bucketize", "boundaries": [1, 2]}, "has 9 rows, but 2 boundaries make 3"),
        ({"transform": {"hash": 1}}, "transform"),
        ({"transform": "bucketize", "boundaries": 3}, "boundaries"),
    ],
)
def test_a_wrong_sparse_feature_is_refused_in_words(wrong, message):
    with pytest.raises(ValidationError, match=message):
        SparseFeature(name="f", **wrong)


def test_mean_belongs_to_standardise():
    with pytest.raises(ValidationError, match="belong to transform `standardise`"):
        DenseFeature(name="x", mean=3.0)


@pytest.mark.parametrize("name", ["f", "a.b", "a/b", ""])
def test_names_are_distinct_and_usable_as_state_keys(name):
    with pytest.raises(ValidationError, match="repeated, empty"):
        FeatureSet(sparse=[SparseFeature(name="f", rows=2), SparseFeature(name=name, rows=2)])


@pytest.mark.parametrize("how", [{}, {"transform": "standardise", "mean": -7.0, "std": 0.25}])
def test_a_dense_feature_bounds_its_column_where_its_transform_reaches_the_ceiling(how):
    feature = DenseFeature(name="price", **how)
    assert feature.bounds is not None
    made = dense_of(feature, {"price": pa.array(feature.bounds, pa.float64())})
    assert made[:, 0].tolist() == [-LARGEST_INPUT, LARGEST_INPUT]


def test_a_logarithm_bears_every_number_and_columns_are_bounded_by_all_that_is_made_of_them():
    largest = pa.array([float(np.finfo(np.float32).max)])
    price = DenseFeature(name="price", transform="log1p")
    assert price.bounds is None
    assert dense_of(price, {"price": largest})[0] < 90
    small = DenseFeature(name="small", column="price", transform="standardise", std=2.0**-24)
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9)], dense=[price, small, DenseFeature(name="age")])
    assert features.ranges == {
        "sample_weight": (0, LARGEST_INPUT),
        "price": (-1, 1),
        "age": (-LARGEST_INPUT, LARGEST_INPUT),
    }
