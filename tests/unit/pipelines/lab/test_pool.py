"""Jobs in several processes: counted, told apart from mistakes, and ended by whatever ends the pool."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipelines.lab.pool import Pool
from streaming.errors import BadInput, StreamingError
from tests.support.pipelines.pool_work import square
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def pool():
    pool = Pool(square, 2)
    yield pool
    pool.close()


def test_jobs_are_done_by_other_processes_and_all_are_counted(pool):
    told = []
    assert sorted(pool.run([1, 2, 3, 4], told.append)) == [1, 4, 9, 16]
    assert sum(told) == 10
    assert list(pool.run([5], told.append)) == [25]
    with pytest.raises(BadInput, match="no such thing; try another"):
        list(pool.run(["fail"], lambda count: None))


def test_an_unforeseen_error_of_a_process_is_told_in_its_words(pool):
    with pytest.raises(StreamingError, match=r"TypeError.*multiply"):
        list(pool.run(["text"], lambda count: None))


def test_ctrl_c_does_not_reach_a_process_that_has_only_begun_to_start(pool):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    struck = []

    def strike() -> None:
        """As a terminal does, as soon as there are processes."""
        for child in eventually(multiprocessing.active_children):
            os.kill(child.pid, signal.SIGINT)
            struck.append(child.pid)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        told = []
        assert sorted(pool.run([3, 4], told.append)) == [9, 16]
        assert sum(told) == 7
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert struck


def test_a_killed_process_ends_the_pool_with_what_to_do(pool):
    with pytest.raises(StreamingError, match=r"killed by signal 9; out of memory.*the same command resumes"):
        list(pool.run([2, "die"], lambda count: None))


def test_closing_ends_processes_in_the_middle_of_a_job(pool):
    results = pool.run([2, "sleep"], lambda count: None)
    assert next(results) == 4
    children = multiprocessing.active_children()
    assert children
    pool.close()
    assert not any(child.is_alive() for child in children)
    assert not any(child.exitcode == 0 for child in children)  # the job's sleep was not waited for


def test_closing_ends_no_process_that_is_somebody_elses(pool):
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(PATIENCE_S,), daemon=True)
    other.start()
    try:
        assert sorted(pool.run([1, 2], lambda count: None)) == [1, 4]
        pool.close()
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_processes_end_with_a_parent_that_was_killed():
    """The pipe to their stdout is closed once they are gone."""
    code = (
        "from pipelines.lab.pool import Pool; from tests.support.pipelines.pool_work import square\n"
        "if __name__ == '__main__':\n"
        "    for found in Pool(square, 2).run([2, 'sleep', 'sleep'], print): print('done', flush=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    while "done" not in parent.stdout.readline():
        assert parent.poll() is None
    parent.kill()
    parent.communicate(timeout=PATIENCE_S)
