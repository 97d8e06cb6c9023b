"""The table of students."""

from __future__ import annotations

import pytest
from rich.console import Console

from pipelines.report.screens.students import students_table

STUDENT = {
    "name": "cheap", "state": "done", "filter": {"verticals": "all", "where": "price < 2"}, "rows": 15_280,
    "lag_rows": 0, "ne": {"ctr": 0.97}, "teacher_version": 39, "logit_age_s": 9.0,
    "versions": {"champion": "v00039997"}, "tables": None, "rss_bytes": None, "host": None, "reason": None,
}  # fmt: skip


@pytest.mark.parametrize(("host", "shown"), [(None, False), (4711, True)])
def test_figures_of_processes_are_shown_where_a_student_has_one(host, shown):
    console = Console(width=120)
    with console.capture() as said:
        console.print(students_table([STUDENT | {"host": host}], console.width))
    head = said.get().splitlines()[0].split()
    assert ("pid" in head, "MB" in head) == (shown, shown)
