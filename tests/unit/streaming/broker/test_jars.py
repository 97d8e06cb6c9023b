"""Fetching the broker's jars: whole or not at all, and none but those expected."""

from __future__ import annotations

import pytest

from streaming.broker import jars as broker_jars
from streaming.errors import StreamingError


@pytest.fixture
def downloads(monkeypatch, tmp_path):
    """A resolver that writes `jar` files; returns the list of scratch folders it was given."""
    given = []

    def download(scratch):
        given.append(scratch)
        (scratch / "built" / "jars").mkdir(parents=True)
        (scratch / "built" / "jars" / "kafka.jar").write_bytes(b"all of it")
        return scratch / "built"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(broker_jars, "download", download)
    (tmp_path / "expected").mkdir()
    (tmp_path / "expected" / "kafka.jar").write_bytes(b"all of it")
    monkeypatch.setattr(broker_jars, "JARS_DIGEST", broker_jars.jars_digest(tmp_path / "expected"))
    return given


def test_the_second_call_downloads_nothing(downloads):
    first = broker_jars.fetch_jars()
    assert (first / "jars" / "kafka.jar").read_bytes() == b"all of it"
    assert broker_jars.fetch_jars() == first
    assert len(downloads) == 1


def test_a_fetch_that_breaks_off_leaves_nothing_that_looks_whole(downloads, monkeypatch):
    whole = broker_jars.download

    def killed(scratch):
        whole(scratch)
        raise KeyboardInterrupt

    monkeypatch.setattr(broker_jars, "download", killed)
    with pytest.raises(KeyboardInterrupt):
        broker_jars.fetch_jars()
    assert not broker_jars.cache_folder().exists()
    monkeypatch.setattr(broker_jars, "download", whole)
    assert broker_jars.fetch_jars() == broker_jars.cache_folder()


def test_other_jars_than_expected_are_refused_with_both_digests(downloads, monkeypatch):
    found = broker_jars.JARS_DIGEST
    monkeypatch.setattr(broker_jars, "JARS_DIGEST", "0" * 64)
    with pytest.raises(StreamingError, match=f"{found}, not {'0' * 64}"):
        broker_jars.fetch_jars()
    assert not broker_jars.cache_folder().exists()


@pytest.mark.parametrize("how", [lambda jar: jar.write_bytes(b"all of it, and more"), lambda jar: jar.unlink()])
def test_jars_that_were_altered_since_are_never_run(downloads, how):
    how(broker_jars.fetch_jars() / "jars" / "kafka.jar")
    with pytest.raises(StreamingError, match=r"are not the ones that were fetched.*delete that folder"):
        broker_jars.fetch_jars()
    assert len(downloads) == 1


def test_a_cache_that_cannot_be_written_is_named(downloads, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StreamingError, match="cannot be kept in"):
        broker_jars.fetch_jars()
