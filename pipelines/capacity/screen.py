"""A price on a terminal: terms with what measures them, bytes, and where one machine ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.capacity.price import MEASURED_BY, FullAt, Price, Size
from pipelines.capacity.rates import Rates
from pipelines.report.table import Entry, TextTable, Toned
from pipelines.report.words import count

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size: float) -> str:
    """Bytes in three digits.

    >>> size_text(37), size_text(1_234_000), size_text(999_999), size_text(2.5e13)
    ('37 B', '1.23 MB', '1 MB', '25 TB')
    """
    power = 0
    while size >= 999.5 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"


def tables(price: Price) -> Iterator[TextTable]:
    """Terms, bytes and limits. `by`: the number of a line of `sources`."""
    number = {key: str(at) for at, key in enumerate(MEASURED_BY, 1)}
    rows: list[Sequence[Entry]] = [
        [
            f"{line.worker}: {line.name}",
            f"{line.cpu_s * 1e6:,.1f} µs a {line.per}",
            f"{line.events:,.4g}",
            f"{line.cores:.3f}",
            number[line.measured_by],
        ]
        for line in price.lines
    ]
    rows.append(["all", "", "", Toned(f"{price.cores:.3f}", "strong"), ""])
    yield TextTable("cores", ["term", "CPU", "a second", "cores", "by"], rows, names=1)
    total = Size("all", price.memory_bytes, "")
    for title, sizes in (("memory", [*price.memory, total]), ("network, a second", price.network)):
        yield TextTable(title, ["what", "bytes", "by"], [[*_sized(size, number)] for size in sizes])
    disk = [[*_sized(size, number), "a day" if size.grows else "in all, at most"] for size in price.disk]
    yield TextTable("disk", ["what", "bytes", "by", ""], disk)
    yield TextTable(
        "where one machine ends", ["full", "at impressions/s", "now", "beyond"], [_limit(each) for each in price.limits]
    )


def _sized(size: Size, number: dict[str, str]) -> tuple[str, str, str]:
    return size.name, size_text(size.bytes), number.get(size.measured_by, "")


def _limit(limit: FullAt) -> list[Entry]:
    return [limit.what, count(limit.impressions), f"{100 * limit.used:.0f} %", limit.beyond]


def verdict(price: Price) -> str:
    """First part to be full, and whether one machine is enough, in words."""
    first, asked = price.limits[0], price.workload.impressions
    ends = f"one machine ends at {first.impressions:,.0f} impressions a second: {first.what} is full"
    if not price.extrapolated:
        machine = f"{price.cores_per_machine:g} cores and {size_text(price.memory_per_machine)}"
        return f"it fits one machine of {machine}; {ends}"
    machines = f"{price.machines} machine{'s' * (price.machines > 1)}"
    return (
        f"{asked:,.0f} impressions a second take {price.cores:,.1f} cores and {size_text(price.memory_bytes)}, "
        f"{machines} if workers can be spread; {ends}; beyond it everything here is extrapolated"
    )


def sources(rates: Rates) -> list[str]:
    """Machine that the figures were measured on, and the commands that measure them again."""
    lines = [f"measured on {rates.run.measured}; engines and constants: {rates.measured}"]
    return [*lines, *(f"  {at}  {words}" for at, words in enumerate(MEASURED_BY.values(), 1))]
