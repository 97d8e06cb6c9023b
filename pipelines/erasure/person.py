"""A person: whose rows are to be erased, by a condition on what was received with an impression.

Some places have the columns of the condition, others an impression's id alone, or a message as it was received. So rows
are found by the condition, by the ids of impressions that it was found for, by their `lake_seq`, and in texts by the
values that the condition compares with, where it is of equalities.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.lake.where import Where
from streaming.schema import AsOf, RowSchema

ID = "impression_id"
SHORTEST_TEXT = 4
"""A shorter text is in too many others by chance: it is looked for as a whole value alone."""
ERASED = "erased"


def condition_of(text: str) -> str:
    """The text with `=` where people write it for `==`.

    >>> condition_of("user_id = 7"), condition_of("name == 'a = b'"), condition_of("bid >= 2")
    ('user_id == 7', "name == 'a = b'", 'bid >= 2')
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text
    places = [token.start[1] for token in tokens if token.type == tokenize.OP and token.string == "="]
    for place in reversed(places) if "\n" not in text else ():
        text = f"{text[:place]}=={text[place + 1 :]}"
    return text


def equalities(text: str) -> dict[str, list[Any]]:
    """The values that a condition compares columns with, where it is `a == 1`, `a in (1, 2)`, or several of these with
    `or`; empty for any other.

    >>> equalities("user_id == 7 or device in ('x', 'y')"), equalities("user_id == 7 and bid > 1")
    ({'user_id': [7], 'device': ['x', 'y']}, {})
    >>> equalities("user_id == 7.0"), equalities("user_id == 3 + 4"), equalities("user_id == ad_id")
    ({'user_id': [7]}, {}, {})
    """
    found: dict[str, list[Any]] = {}
    whole = ast.parse(text.strip(), mode="eval").body
    for part in whole.values if isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.Or) else [whole]:
        match part:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[value]):
                values = [value]
            case ast.Compare(left=value, ops=[ast.Eq()], comparators=[ast.Name(id=name)]):
                values = [value]
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.In()], comparators=[ast.Tuple() | ast.List() | ast.Set() as of]
            ):
                values = of.elts
            case _:
                return {}
        try:
            literal = [ast.literal_eval(value) for value in values]
        except ValueError:  # `a == b`, `a == 1 + 2`
            return {}
        whole_numbers = (int(each) if isinstance(each, float) and each.is_integer() else each for each in literal)
        found.setdefault(name, []).extend(whole_numbers)
    return found


class Person:
    """The rows that a condition is true of. `ids` and `seq` grow as its impressions are found.

    >>> from streaming.schema import Column, Task
    >>> schema = RowSchema(columns=[Column(name="user_id")], tasks=[Task(name="ctr", window_s=60)])
    >>> person = Person("user_id = 7", schema)
    >>> person.met(pa.table({"impression_id": [1, 2], "user_id": [7, 8]})).tolist()
    [True, False]
    >>> person.know(pa.array([1]))
    >>> person.met(pa.table({"impression_id": [1, 2]})).tolist()
    [True, False]
    >>> person.in_message(b'{"impression_id": 5, "user_id": 7}'), person.in_message(b'{"user_id": 77}')
    (True, False)
    """

    def __init__(self, text: str, schema: RowSchema) -> None:
        """Raises BadInput as `Where` does."""
        self.condition = condition_of(text)
        self.where = Where(self.condition, schema)
        self.values: Mapping[str, Sequence[Any]] = equalities(self.condition)
        self._schema = schema
        self._ids = pa.array([], schema.id_type)
        self._seq = np.empty(0, np.int64)
        self._known: set[Any] = set()
        texts = [value for values in self.values.values() for value in values if isinstance(value, str) and value]
        self.texts = tuple(dict.fromkeys(texts))

    @property
    def ids(self) -> pa.Array:
        """Ids of the impressions that were found."""
        return self._ids

    @property
    def seq(self) -> np.ndarray:
        """Rows of the lake that were found, (N,) int64 ascending."""
        return self._seq

    def know(self, ids: pa.Array | pa.ChunkedArray, seq: np.ndarray | None = None) -> None:
        """Note impressions of this person, and their rows in the lake."""
        more = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
        self._ids = pc.unique(pa.concat_arrays([self._ids, more.cast(self._schema.id_type)]))
        self._known = set(self._ids.to_pylist())
        if seq is not None:
            self._seq = np.union1d(self._seq, seq)

    def met(self, rows: pa.Table) -> np.ndarray:
        """Mask (N,) bool of rows of this person, by the columns that they have."""
        names = rows.column_names
        met = np.zeros(rows.num_rows, bool)
        if set(self.where.columns) <= set(names):
            met |= self.where.mask(rows)
        if ID in names:
            met |= np.asarray(pc.is_in(rows[ID], value_set=self._ids.cast(rows.schema.field(ID).type)))
        if "lake_seq" in names:
            met |= np.isin(rows["lake_seq"].to_numpy(), self._seq)
        return met

    def without_events(self, rows: pa.Table, asof: AsOf) -> pa.Table:
        """Rows whose histories of events, as-of features of kind `last`, have 0 in place of the values that the
        condition compares with; the same object where none has one."""
        for feature in asof.features if self.values else ():
            for name in feature.of or ():
                values = [each for each in self.values.get(name, ()) if isinstance(each, int)]
                column = f"{feature.name}_{name}"
                if not values or column not in rows.column_names:
                    continue
                lists = rows[column].combine_chunks()
                found = np.isin(lists.values.to_numpy(zero_copy_only=False), values)
                if found.any():
                    inside = pc.if_else(pa.array(found), pa.scalar(0, lists.type.value_type), lists.values)
                    again = pa.ListArray.from_arrays(lists.offsets, inside, type=lists.type, mask=lists.is_null())
                    rows = rows.set_column(rows.column_names.index(column), rows.schema.field(column), again)
        return rows

    # --- texts and messages ------------------------------------------------------------------------------------------

    def in_text(self, text: str) -> bool:
        """True if a text names the person: it is one of the condition's texts, or holds one that is long enough."""
        return any(text == each or (len(each) >= SHORTEST_TEXT and each in text) for each in self.texts)

    def in_message(self, payload: bytes) -> bool:
        """True if a message as it was received, or a row of one as JSON, is of this person."""
        try:
            return self._in_value(json.loads(payload))
        except (ValueError, RecursionError):
            return self.in_bytes(payload)

    def in_bytes(self, payload: bytes) -> bool:
        """True if the bytes hold a text of the condition."""
        return any(len(each) >= SHORTEST_TEXT and each.encode() in payload for each in self.texts)

    def is_readable(self, payload: bytes) -> bool:
        """True where a message says of whom it is, or would, by a text."""
        try:
            json.loads(payload)
            return True
        except (ValueError, RecursionError):
            return any(len(each) >= SHORTEST_TEXT for each in self.texts)

    def _in_value(self, value: Any) -> bool:
        if isinstance(value, list):
            return any(map(self._in_value, value))
        if isinstance(value, str):
            return self.in_text(value)
        if not isinstance(value, dict):
            return False
        if value.get(ID) in self._known if _hashable(value.get(ID)) else False:
            return True
        return self._is_row(value) or any(map(self._in_value, value.values()))

    def _is_row(self, value: dict[str, Any]) -> bool:
        """True if the object has the columns of the condition, and meets it: as a row of the schema, or literally."""
        if any(value.get(name) in values for name, values in self.values.items() if _hashable(value.get(name))):
            return True
        if any(str(value.get(name)) in map(str, values) for name, values in self.values.items() if name in value):
            return True
        try:
            fields = [self._schema.impression.field(name) for name in self.where.columns]
            rows = pa.table([pa.array([value[field.name]], field.type) for field in fields], schema=pa.schema(fields))
            return bool(self.where.mask(rows)[0])
        except (KeyError, pa.ArrowException, TypeError, ValueError, OverflowError):
            return False

    def without(self, value: Any) -> Any:
        """A JSON value in which texts that name the person are replaced.

        >>> from streaming.schema import Column, Task
        >>> schema = RowSchema(columns=[Column(name="user", type="string")], tasks=[Task(name="ctr", window_s=60)])
        >>> Person("user == 'u-1234'", schema).without({"detail": ["`u-1234` is odd", "fine"], "n": 3})
        {'detail': ['erased', 'fine'], 'n': 3}
        >>> Person("user == 'u-1234'", schema).without({"bad:u-1234": 3, "bad:u-1234 again": 4, "null:user": 1})
        {'erased': 7, 'null:user': 1}
        """
        if isinstance(value, str):
            return ERASED if self.in_text(value) else value
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if isinstance(value, dict):
            left: dict[str, Any] = {}
            for name, each in value.items():
                key, more = ERASED if self.in_text(str(name)) else name, self.without(each)
                both = key in left and isinstance(more, int | float)  # counts by reasons that name the person
                left[key] = left[key] + more if both else more
            return left
        return value

    def letters(self, rows: pa.Table) -> np.ndarray:
        """Mask (N,) bool of dead letters of this person."""
        payloads, details = rows["payload"].to_pylist(), rows["detail"].to_pylist()
        reasons = rows["reason"].to_pylist()
        found: Iterable[bool] = (
            self.in_message(payload) or self.in_text(detail) or self.in_text(reason)
            for payload, detail, reason in zip(payloads, details, reasons, strict=True)
        )
        return np.fromiter(found, bool, rows.num_rows)

    def refused(self, rows: pa.Table) -> list[Any]:
        """Ids of impressions of this person that were refused, as far as dead letters say them."""
        own = rows.filter(pa.array(self.letters(rows) & np.asarray(pc.equal(rows["kind"], "impression"))))
        found: list[Any] = []
        for payload in own["payload"].to_pylist():
            try:
                value = json.loads(payload)
                id = value.get(ID) if isinstance(value, dict) and self._is_row(value) else None
                found += [] if id is None else pa.array([id]).cast(self._schema.id_type).to_pylist()
            except (ValueError, RecursionError, pa.ArrowException):
                continue
        return found

    def unreadable(self, rows: pa.Table) -> int:
        """Number of dead letters that cannot be searched."""
        return sum(not self.is_readable(payload) for payload in rows["payload"].to_pylist())


def _hashable(value: Any) -> bool:
    return isinstance(value, int | float | str | bool)
