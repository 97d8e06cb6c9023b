import pytest
from pydantic import ValidationError

from exfm.data import DenseFeature, FeatureSet, SparseFeature


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
