import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from exfm.errors import ConfigError, ModelError
from exfm.features.dense import DenseFeature
from exfm.features.sparse import SparseFeature
from exfm.features.transforms import bags_of, dense_of, hash64


def ids(feature, **columns):
    bags = bags_of(feature, {name: column for name, column in columns.items()})
    lengths = None if bags.lengths is None else bags.lengths.tolist()
    return bags.values.tolist(), lengths


def splitmix64(x):
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_integers_are_hashed_by_the_splitmix64_finaliser():
    values = [0, 1, 7, 2**62]
    assert hash64(pa.array(values)).tolist() == [splitmix64(v) for v in values]
    assert hash64(pa.array([-1])).tolist() == [splitmix64(2**64 - 1)]


def test_the_integer_type_does_not_change_the_hash():
    for kind in (pa.int8(), pa.int32(), pa.int64()):
        assert hash64(pa.array([-3, 5], kind)).tolist() == hash64(pa.array([-3, 5])).tolist()


def test_strings_hash_like_pandas_with_and_without_repetition():
    words = ["a", "longer word", "", "ß", "a"]
    expected = pd.util.hash_array(np.array(words, dtype=object))
    for kind in (pa.string(), pa.large_string()):
        assert (hash64(pa.array(words, kind)) == expected).all()


def test_a_slice_hashes_like_its_rows_alone():
    column = pa.array([1, 2, 3, 4])
    assert hash64(column[2:]).tolist() == hash64(column).tolist()[2:]


def test_hash_takes_the_remainder_of_rows():
    assert ids(SparseFeature(name="f", rows=7), f=pa.array([3])) == ([splitmix64(3) % 7], None)


def test_null_empties_the_bag():
    feature = SparseFeature(name="f", rows=10, transform="index")
    assert ids(feature, f=pa.array([4, None, 6])) == ([4, 6], [1, 0, 1])


def test_a_list_column_gives_bags_and_skips_nulls_at_both_levels():
    feature = SparseFeature(name="f", rows=10, transform="index")
    lists = pa.array([[1, 2], [], None, [3, None, 4], [None]], pa.list_(pa.int64()))
    assert ids(feature, f=lists) == ([1, 2, 3, 4], [2, 0, 0, 2, 0])
    assert ids(feature, f=lists[1:4]) == ([3, 4], [0, 0, 2])


def test_an_index_outside_the_table_names_feature_value_and_rows():
    feature = SparseFeature(name="age", column="years", rows=100, transform="index")
    for value in (100, -1):
        with pytest.raises(ModelError, match=rf"`age`: value {value} of column `years` .* 100 rows"):
            ids(feature, years=pa.array([5, value]))


def test_buckets_count_the_boundaries_at_or_below_a_value():
    feature = SparseFeature(name="f", transform="bucketize", boundaries=[0.5, 2])
    assert ids(feature, f=pa.array([0.0, 0.5, 1.9, 2.0, 99.0], pa.float32())) == ([0, 1, 1, 2, 2], None)
    assert ids(feature, f=pa.array([0, None, 3])) == ([0, 2], [1, 0, 1])


def test_a_cross_depends_on_every_column_and_on_their_order():
    def cross(a, b, order=("a", "b")):
        feature = SparseFeature(name="f", columns=order, rows=2**62)
        return ids(feature, a=pa.array(a), b=pa.array(b))[0]

    assert len(set(cross([1, 1, 2, 2], [3, 4, 3, 4]))) == 4
    assert cross([1], [2]) != cross([2], [1])
    assert cross([1], ["x"]) != cross([1], ["y"])
    assert cross([5], [5]) != cross([6], [6])


def test_a_null_in_any_column_of_a_cross_empties_the_bag():
    feature = SparseFeature(name="f", columns=("a", "b"), rows=1000)
    whole = ids(feature, a=pa.array([1, 2, 3]), b=pa.array([1, 2, 3]))[0]
    holes = ids(feature, a=pa.array([1, None, 3]), b=pa.array([1, 2, None]))
    assert holes == (whole[:1], [1, 0, 0])


@pytest.mark.parametrize(
    ("feature", "column", "message"),
    [
        (SparseFeature(name="f", rows=9), pa.array([0.5]), "hashes column `f` of type double"),
        (SparseFeature(name="f", rows=9, transform="index"), pa.array(["a"]), "indexes by column `f` of type string"),
        (SparseFeature(name="f", transform="bucketize", boundaries=[1]), pa.array(["a"]), "buckets column `f`"),
        (SparseFeature(name="x", columns=("f", "f"), rows=9), pa.array([[1]]), "crosses column `f` of type list"),
    ],
)
def test_a_column_of_the_wrong_type_is_named(feature, column, message):
    with pytest.raises(ModelError, match=message):
        ids(feature, f=column)


def test_dense_transforms_and_missing_values():
    column = pa.array([3.0, None, -1.0])
    dense = {t: dense_of(DenseFeature(name="x", transform=t), {"x": column})[:, 0] for t in ("identity", "log1p")}
    np.testing.assert_allclose(dense["identity"], [3, 0, -1])
    np.testing.assert_allclose(dense["log1p"], [np.log(4), 0, -np.log(2)], rtol=1e-6)
    standardised = dense_of(DenseFeature(name="x", transform="standardise", mean=2, std=4), {"x": column})[:, 0]
    np.testing.assert_allclose(standardised, [0.25, 0, -0.75])
    assert standardised.dtype == np.float32
    with pytest.raises(ModelError, match="`x` reads column `x` of type string"):
        dense_of(DenseFeature(name="x"), {"x": pa.array(["a"])})


VECTOR = DenseFeature(name="v", length=2, clip=(-1, 3))


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int64()])
def test_a_list_of_floats_is_as_many_inputs_and_a_null_is_zeros(kind):
    column = pa.array([[9, 9], [1, 2], None, [-4, 7], [None, 1]], pa.list_(kind)).slice(1)
    assert dense_of(VECTOR, {"v": column}).tolist() == [[1, 2], [0, 0], [-1, 3], [0, 1]]
    assert VECTOR.labels == ("v:0", "v:1")
    assert dense_of(VECTOR, {"v": column.slice(0, 0)}).shape == (0, 2)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([[1.0, 2.0], [3.0]]),
            "reads lists of 2 floats from column `v`, and a row has 1; declare `length: 2`",
        ),
        (pa.array([1.0]), "reads lists of 2 floats from column `v`, and it is of type double"),
        (pa.array([["a", "b"]]), "and it is of type list<item: string>"),
    ],
)
def test_lists_of_another_length_or_kind_are_named(column, message):
    with pytest.raises(ConfigError, match=message):
        dense_of(VECTOR, {"v": column})


def test_a_whole_number_that_a_float_does_not_hold_is_rounded():
    number = 2**53 + 1
    made = dense_of(DenseFeature(name="x", transform="log1p"), {"x": pa.array([number, -(2**63)])})
    np.testing.assert_allclose(made[:, 0], [np.log(2.0**53), -np.log(2.0**63)], rtol=1e-6)


def test_a_bag_is_cut_to_its_first_ids():
    lists = pa.array([[1, 2, 3], [], None, [4], [None, 5, 6, 7]])
    two = SparseFeature(name="b", rows=9, transform="index", most=2)
    assert ids(two, b=lists) == ([1, 2, 4, 5, 6], [2, 0, 0, 1, 2])
    assert ids(SparseFeature(name="b", rows=9, transform="index", most=3), b=lists)[1] == [3, 0, 0, 1, 3]
    with pytest.raises(ValueError, match="`most` is for a column of lists"):
        SparseFeature(name="x", rows=9, columns=("a", "b"), most=3)
