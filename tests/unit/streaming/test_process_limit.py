"""A limit on processes and threads, of a user or of a container, is named with its figures."""

import os
import resource

import pytest

from streaming import process_limit
from streaming.process_limit import met_limit, too_few_left


@pytest.fixture
def container(tmp_path, monkeypatch):
    """One that has 190 of 200."""
    (tmp_path / "pids.max").write_text("200\n")
    (tmp_path / "pids.current").write_text("190\n")
    monkeypatch.setattr(process_limit, "POOLS", (str(tmp_path / "absent" / "pids.max"), str(tmp_path / "pids.max")))
    return tmp_path


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(11, "Resource temporarily unavailable"),
        RuntimeError("can't start new thread"),
        "E1126 08:22:01 thd.cc:157] pthread_create failed: Resource temporarily unavailable\n",
        'Exception in thread "main" java.lang.OutOfMemoryError: unable to create native thread: possibly …',
    ],
)
def test_whoever_meets_it_the_containers_figures_are_named(container, error):
    words = met_limit(error)
    assert words is not None
    assert f"the container ({container}/pids.max) has 190 of 200. Raise that limit" in words


def test_what_is_left_is_compared_with_what_is_needed(container):
    assert too_few_left(10) is None
    assert "has 190 of 200. Raise that limit" in (too_few_left(11) or "")
    (container / "pids.max").write_text("max\n")
    assert too_few_left(1_000_000) is None


@pytest.mark.parametrize(("user", "limited"), [(0, False), (os.getuid() or 1, True)])
def test_a_users_own_limit_holds_for_all_users_but_root(container, monkeypatch, user, limited):
    (container / "pids.max").write_text("max\n")
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (3, 3) if what == resource.RLIMIT_NPROC else None)
    assert (f"user {user} (ulimit -u) has " in (too_few_left(1_000_000) or "")) is limited
