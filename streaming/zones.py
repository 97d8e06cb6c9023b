"""Time zones named in a config."""

from __future__ import annotations

import difflib
import zoneinfo
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator


def known_zone(name: str) -> str:
    """Validate the name of an IANA time zone. Raises ValueError for another, with one that is close.

    >>> known_zone("Europe/Berln")
    Traceback (most recent call last):
    ...
    ValueError: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`? IANA names are taken, and UTC
    """
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("ms")), name)
    except pa.ArrowException:
        folded = {zone.lower(): zone for zone in zoneinfo.available_timezones()}
        near = difflib.get_close_matches(name.lower(), folded, n=1)
        meant = f"did you mean `{folded[near[0]]}`? " if near else ""
        raise ValueError(f"unknown time zone `{name}`; {meant}IANA names are taken, and UTC") from None
    return name


Zone = Annotated[str, AfterValidator(known_zone)]
