"""Whose rows a condition means: those of a person, and nobody else's."""

from __future__ import annotations

import json

import pyarrow as pa

from pipelines.erasure.person import Person
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.schema import Column, RowSchema, Task

ROWS = RowSchema(
    columns=[Column(name="user", type="string"), Column(name="page", type="string")],
    tasks=[Task(name="ctr", window_s=60)],
)


def letters(*values):
    """Refused impressions."""
    none = {"kind": "impression", "reason": "bad", "detail": ""}
    filled = [
        {field.name: none.get(field.name, 0 if pa.types.is_integer(field.type) else "") for field in DEAD_LETTER_SCHEMA}
        | {"payload": json.dumps(value).encode()}
        for value in values
    ]
    columns = [pa.array([row[f.name] for row in filled]).cast(f.type) for f in DEAD_LETTER_SCHEMA]
    return pa.Table.from_arrays(columns, schema=DEAD_LETTER_SCHEMA)


def test_a_refused_impression_of_somebody_whose_row_merely_has_the_text_gives_no_id_to_erase_by():
    person = Person("user = 'anna'", ROWS)
    other = {"impression_id": 5, "user": "bo", "page": "savannah"}
    own = {"impression_id": 6, "user": "anna", "page": "home"}
    assert person.refused(letters(other, own)) == [6]
    person.know(pa.array(person.refused(letters(other, own))))
    assert person.met(pa.table({"impression_id": [5, 6]})).tolist() == [False, True]
