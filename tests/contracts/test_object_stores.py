"""What every object store does: a folder, and S3, as two servers understand it that know nothing of each other."""

from __future__ import annotations

import threading

import pytest

from streaming.errors import BadInput
from streaming.store import objects
from streaming.store.objects import FolderStore, ObjectStore, md5_of, normalised, store_at
from streaming.store.working_copy import WorkingCopy, open_copy
from tests.support.s3_server import LOST, PAGE, TORN, UNAVAILABLE


@pytest.fixture(params=["folder", "s3_server", "moto_server"])
def store(request, tmp_path) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    request.getfixturevalue(request.param)
    return store_at(f"s3://bucket/{tmp_path.name}")


def test_what_was_put_is_read_fetched_listed_and_deleted(store, tmp_path):
    (tmp_path / "file").write_bytes(b"from a file")
    store.put("a/one", b"first")
    store.put("a/one", b"1")
    tag = store.put("a b/zwei=ü.txt", tmp_path / "file")
    assert store.read("a/one") == b"1"
    store.fetch("a b/zwei=ü.txt", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"from a file"
    found = list(store.list())
    assert [(each.key, each.bytes) for each in found] == [("a b/zwei=ü.txt", 11), ("a/one", 1)]
    assert found[0].tag == tag == store.tag_of(tmp_path / "file") != found[1].tag
    assert all(-2 < each.age_s < 100 for each in found)
    assert [each.key for each in store.list("a/")] == ["a/one"]
    store.delete(["a/one", "a/never"])
    with pytest.raises(FileNotFoundError):
        store.read("a/one")
    with pytest.raises(FileNotFoundError):
        store.fetch("a/one", tmp_path / "nothing")


def test_of_many_who_put_if_absent_one_succeeds(store):
    won: list[int] = []

    def put(number: int) -> None:
        if store.put_if_absent("epoch/7", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=put, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("epoch/7") == b"%d" % won[0]
    assert store.put_if_absent("epoch/7", store.read("epoch/7"))  # its own answer may have been lost


@pytest.mark.parametrize("server", ["s3_server", "moto_server"])
def test_a_listing_has_more_than_a_page(request, tmp_path, server):
    request.getfixturevalue(server)
    store = store_at(f"s3://bucket/{tmp_path.name}")
    for number in range(PAGE + 5):
        store.put(f"{number:05d}", b"x")
    assert len({each.key for each in store.list()}) == PAGE + 5
    store.delete(each.key for each in store.list())
    assert list(store.list()) == []


@pytest.mark.parametrize("server", ["s3_server", "moto_server"])
def test_a_large_file_is_put_in_parts(request, tmp_path, monkeypatch, server):
    request.getfixturevalue(server)
    monkeypatch.setattr("streaming.store.s3.IN_PARTS_BYTES", 5 << 20)
    (tmp_path / "large").write_bytes(bytes(range(256)) * (48 << 10))
    store = store_at(f"s3://bucket/{tmp_path.name}")
    tag = store.put("large", tmp_path / "large")
    assert tag.endswith("-3")
    assert [each.tag for each in store.list()] == [tag] == [store.tag_of(tmp_path / "large")]
    store.fetch("large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "large").read_bytes()


def test_a_file_that_was_put_in_parts_is_not_moved_again(s3_server, tmp_path, monkeypatch):
    monkeypatch.setattr("streaming.store.s3.IN_PARTS_BYTES", 5 << 20)
    here = open_copy(tmp_path / "here", f"s3://bucket/{tmp_path.name}")
    (here.root / "large").write_bytes(bytes(12 << 20))
    here.mirror()
    s3_server.fail(0.0)
    another = WorkingCopy(here.root, here.url, None)  # of another process
    another.mirror()
    another.pull()
    counts = s3_server.counts()
    assert (counts["bytes_in"], counts["requests"].get("GET", 0)) == (0, 0)


def test_a_listing_of_a_folder_reads_what_it_lists_once(tmp_path, monkeypatch):
    store, read = FolderStore(tmp_path / "store"), []
    for key in ("a/one", "a/two", "b/three"):
        store.put(key, key.encode())
    monkeypatch.setattr(objects, "md5_of", lambda path: read.append(path.name) or md5_of(path))
    assert [each.key for each in store.list("a/t")] == ["a/two"]
    assert read == ["two"]
    tags = [each.tag for each in store.list()]
    assert [each.tag for each in store.list()] == tags
    assert sorted(read) == ["one", "three", "two"]
    store.put("a/one", b"A/one")
    assert [each.tag for each in store.list()] != tags


@pytest.mark.parametrize("kind", [UNAVAILABLE, TORN, LOST])
def test_requests_that_fail_are_made_again(s3_server, tmp_path, kind):
    store = store_at(f"s3://bucket/{tmp_path.name}")
    with s3_server.failing(0.3, seed=1, kinds=[kind]):
        for number in range(10):
            store.put(f"{number}", b"%d" % number * 1000)
        assert store.put_if_absent("epoch", b"mine")
        assert not store.put_if_absent("epoch", b"yours")
        assert [store.read(f"{number}") for number in range(10)] == [b"%d" % number * 1000 for number in range(10)]
    assert s3_server.happened[kind] > 3


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gs://bucket/x", "gs://` is not supported"),
        ("s3://", "names no bucket"),
        ("s3://bucket", "names no path"),
        ("file:///", "names no folder"),
    ],
)
def test_addresses_that_are_none(address, words):
    with pytest.raises(BadInput, match=words):
        normalised(address)


@pytest.mark.parametrize("server", ["s3_server", "moto_server"])
def test_a_bucket_that_is_not_there(request, server):
    request.getfixturevalue(server)
    with pytest.raises(BadInput, match="no bucket `other`"):
        store_at("s3://other/x").read("a")
