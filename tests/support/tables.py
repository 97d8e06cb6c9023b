"""A table of Markdown that is printed while it is measured."""

from __future__ import annotations


class Table:
    """Prints its head at once, and each row as it comes.

    >>> table = Table("stream", "rows")
    | stream | rows |
    |---|---|
    >>> table.row("shared", f"{20_000:,}")
    | shared | 20,000 |
    """

    def __init__(self, *head: str) -> None:
        self.row(*head)
        print("|" + "---|" * len(head), flush=True)

    def row(self, *cells: object) -> None:
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
