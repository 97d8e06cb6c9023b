"""Conditions on rows, written by people: `bid > 0.5 and device in (1, 2)`.

    comparison   a < b, <=, >, >=, ==, !=, chains (0 < a <= 5), `is None`, `is not None`
    membership   a in (1, 2), a not in ("x", "y")
    logic        and, or, not, parentheses
    arithmetic   + - * / on numbers

Names are raw columns of a row, `vertical`, `event_time_ms` and `impression_id`: what is known when an ad is shown.
Labels and logits are not among them; a student that is chosen by its labels learns nothing true. A comparison with a
null is no match. The text is parsed, never run; what it says is checked against the columns and their types, and it is
evaluated by Arrow, in the files where they allow it.
"""

from __future__ import annotations

import ast
import difflib
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.errors import BadInput
from streaming.schema import LABEL_PREFIXES, RowSchema

LONGEST = 2000
"""Characters of a condition."""

_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_CALCULATED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add, ast.Sub: pc.subtract, ast.Mult: pc.multiply, ast.Div: pc.divide,  # unchecked: / 0 is infinite
}  # fmt: skip
_ALLOWED = "a condition has comparisons (< <= > >= == !=), in (…), is None, and, or, not, + - * /, columns and values"


class Where:
    """A condition, checked against the columns of `schema`: those of an impression, or any Arrow schema.

    >>> from streaming.schema import Column, Task
    >>> schema = RowSchema(columns=[Column(name="device"), Column(name="bid", type="float32")],
    ...                    tasks=[Task(name="ctr", window_s=60)])
    >>> where = Where("bid > 0.5 and device in (1, 2)", schema)
    >>> where.columns
    ('bid', 'device')
    >>> where.mask(pa.table({"device": [1, 3, 2], "bid": [0.6, 0.9, None]})).tolist()
    [True, False, False]
    >>> Where("divice == 1", schema)
    Traceback (most recent call last):
    ...
    streaming.errors.BadInput: `divice == 1`: rows have no column `divice`; did you mean `device`?
    """

    def __init__(self, text: str, schema: RowSchema | pa.Schema) -> None:
        """Raises BadInput where the text is no condition, names a column that rows do not have, or compares what cannot
        be compared."""
        self.text = text
        columns = schema if isinstance(schema, pa.Schema) else schema.impression
        fields = {field.name: field for field in columns}
        parsed = _Parsed(text, fields)
        self.expression: pc.Expression = parsed.condition
        self.columns = tuple(dict.fromkeys(parsed.names))
        if not self.columns:
            raise BadInput(f"`{text}` names no column: it is the same for every row; columns: {', '.join(fields)}")
        try:
            kind = _evaluated(self.expression, pa.schema([fields[name] for name in self.columns]).empty_table()).type
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            types = ", ".join(f"`{name}` is {fields[name].type}" for name in self.columns)
            raise BadInput(f"`{text}` compares what cannot be compared ({types}): {_first_line(error)}") from None
        if not pa.types.is_boolean(kind):
            raise BadInput(f"`{text}` is a {kind}, not true or false; compare it with something: `… > 0`")

    def mask(self, rows: pa.Table) -> np.ndarray:
        """Mask (N,) bool of matching rows; `rows` have `columns`."""
        matching = _evaluated(self.expression, rows.select(list(self.columns)))
        return np.asarray(matching.fill_null(False).to_numpy(), bool)


def _evaluated(expression: pc.Expression, rows: pa.Table) -> pa.ChunkedArray:
    import pyarrow.dataset as ds  # imports pandas

    return ds.dataset(rows).to_table(columns={"found": expression}, use_threads=False)["found"]


class _Parsed:
    """`condition`: the expression; `names`: its columns, in the order in which they stand."""

    def __init__(self, text: str, fields: dict[str, pa.Field]) -> None:
        self._text, self._fields = text, fields
        self.names: list[str] = []
        if len(text) > LONGEST:
            raise BadInput(f"a condition of {len(text):,} characters is too long; {LONGEST:,} are allowed")
        try:
            tree = ast.parse(text.strip(), mode="eval")
            self.condition = self._expression(tree.body)
        except UnicodeEncodeError:
            raise BadInput(f"{text!a} is no condition: it has half a character") from None
        except SyntaxError as error:
            raise self._refused(
                f"is no condition ({error.msg}); equality is `==`; e.g. `bid > 0.5 and device in (1, 2)`"
            ) from None
        except (RecursionError, MemoryError):
            raise self._refused("is nested too deeply") from None

    def _refused(self, why: str) -> BadInput:
        return BadInput(f"`{self._text}` {why}" if why.startswith("is ") else f"`{self._text}`: {why}")

    def _expression(self, node: ast.expr) -> pc.Expression:
        value = self._value(node)
        return value if isinstance(value, pc.Expression) else pc.scalar(value)

    def _value(self, node: ast.expr) -> Any:
        """An expression, or the value of a literal."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return self._literal(node.value)
            case ast.Name(id=name):
                return self._column(name)
            case ast.BoolOp(op=op, values=values):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return functools.reduce(join, map(self._expression, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self._expression(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                if isinstance(operand, ast.Constant) and isinstance(operand.value, int | float):
                    return self._literal(-operand.value)
                return pc.negate(self._number(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _CALCULATED:
                # In floats: 3 / 2 is 1.5, also of integers, and no product is too large.
                a, b = (self._number(side).cast(pa.float64(), safe=False) for side in (left, right))
                return _CALCULATED[type(op)](a, b)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                pairs = [self._compared(a, op, b) for a, op, b in zip(sides, ops, others, strict=False)]
                return functools.reduce(operator.and_, pairs)
        raise self._refused(f"`{ast.unparse(node)}` is not allowed; {_ALLOWED}")

    def _number(self, node: ast.expr) -> pc.Expression:
        """A side of a calculation. Arrow would take a text for one, and end at the first row whose text is none."""
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        column = self._fields.get(node.id) if isinstance(node, ast.Name) else None
        if text or (column is not None and column.type in (pa.string(), pa.large_string())):
            raise self._refused(f"`{ast.unparse(node)}` is a text; + - * / are of numbers")
        return self._expression(node)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._refused("`is` compares with None alone; use ==")
            missing = self._expression(left).is_null()
            return missing if isinstance(op, ast.Is) else ~missing
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
                raise self._refused(f"`in` is followed by values in parentheses, as in `{ast.unparse(left)} in (1, 2)`")
            values = [self._value(each) for each in right.elts]
            if any(isinstance(value, pc.Expression) for value in values):
                raise self._refused("`in` is followed by values, not by columns")
            member = self._expression(left).isin(self._array(values))
            # A null is no member, and as no match it is none of `not in` either.
            return member if isinstance(op, ast.In) else ~member & self._expression(left).is_valid()
        sides = [side for side in (left, right) if isinstance(side, ast.Constant) and side.value is None]
        if sides:
            raise self._refused("a null is compared with `is None`, or `is not None`")
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            raise self._refused(f"`{ast.unparse(left)}` and `{ast.unparse(right)}` are both values; name a column")
        return _COMPARED[type(op)](self._side(left, right), self._side(right, left))

    def _side(self, node: ast.expr, other: ast.expr) -> pc.Expression:
        """A side of a comparison: a number next to a float32 column is one, too, so that `bid == 0.1` finds .1."""
        field = self._fields.get(other.id) if isinstance(other, ast.Name) else None
        value = self._value(node)
        if isinstance(value, float) and field is not None and field.type == pa.float32():
            return pc.scalar(pa.scalar(value, pa.float32()))
        return value if isinstance(value, pc.Expression) else pc.scalar(value)

    def _array(self, values: list[Any]) -> pa.Array:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise self._refused(f"the values {values} are not of one type") from None

    def _literal(self, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
            raise self._refused(f"{value} does not fit into 64 bits")
        return value

    def _column(self, name: str) -> pc.Expression:
        if name not in self._fields:
            near = difflib.get_close_matches(name, self._fields, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"columns: {', '.join(self._fields)}"
            why = "it is known after the fact" if name.startswith(LABEL_PREFIXES) else hint
            raise self._refused(f"rows have no column `{name}`; {why}")
        if pa.types.is_list(self._fields[name].type):
            raise self._refused(f"`{name}` is a list in every row; a condition needs single values")
        self.names.append(name)
        return pc.field(name)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
