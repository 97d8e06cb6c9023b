"""A student that starts with another student's weights, by name and shape.

    tables                  of a feature of the same name and definition; a larger one as in refit.py
    dense part              where both read the same features in the same order, every tensor of equal shape; of the
                            heads, the rows of the tasks that both have
    statistics              of dense features, which those tensors were learned with: likewise
    linear part             where both read the same features and have the same tasks

Anything else starts as it would: optimizer state, prior, corrections of the teacher, the stack. What the other learned
of its rate, and how sure it is, says nothing about this one's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.embeddings.composed import Composed
from exfm.embeddings.kinds.registry import FULL, sharing_rows, tables_of
from exfm.embeddings.table import Table
from exfm.models.growth.refit import MadeWith, fitted_tables, why_not_grown
from exfm.snapshots.windows import TensorSource, whole_tensor

KEPT = ("dense/", "statistics/")
HEADS = ("dense/serving.", "dense/auxiliary.", "dense/adapted.")


class WarmStart(NamedTuple):
    """`state`: a whole state of the new student; `taken`: which of its tensors come from the other one."""

    state: dict[str, TensorSource]
    taken: tuple[str, ...]

    def __str__(self) -> str:
        """
        >>> str(WarmStart({}, ("dense/trunk.top.0.weight", "table/ad/weight", "table/user/weight")))
        'tables `ad`, `user`; 1 tensor of the dense part'
        """
        tables = [name.split("/")[1] for name in self.taken if name.startswith("table/")]
        dense = sum(name.startswith("dense/") for name in self.taken)
        found = [f"tables `{'`, `'.join(tables)}`"] if tables else []
        found += [f"{dense} tensor{'s' * (dense > 1)} of the dense part"] if dense else []
        found += ["the linear part"] if any(name.startswith("wide/") for name in self.taken) else []
        return "; ".join(found) or "nothing: no feature is the same"


def warm_start(
    fresh: Mapping[str, TensorSource], other: Mapping[str, TensorSource], was: MadeWith, now: MadeWith
) -> WarmStart:
    """Initialise a new student from another: `fresh` is the new state, made with `now`; `other` the state of a
    student made with `was`. Tables are read by window, when the state is loaded."""
    found: dict[str, TensorSource] = _tables(other, was, now)
    same_features = was.features.names == now.features.names
    for name, mine in fresh.items():
        theirs = other.get(name)
        if theirs is None or not same_features:
            continue
        fits = tuple(theirs.shape) == tuple(mine.shape)
        if name.startswith(HEADS):
            if tuple(theirs.shape[1:]) == tuple(mine.shape[1:]) and set(was.tasks) & set(now.tasks):
                found[name] = _of_common_tasks(whole_tensor(mine), whole_tensor(theirs), was.tasks, now.tasks)
        elif fits and (name.startswith(KEPT) or (name.startswith("wide/") and was.tasks == now.tasks)):
            found[name] = theirs
    return WarmStart({**fresh, **found}, tuple(sorted(found)))


def _tables(other: Mapping[str, TensorSource], was: MadeWith, now: MadeWith) -> dict[str, TensorSource]:
    """Weights of the tables that fit; AdaGrad begins anew, so that they can move."""
    before, after = ({feature.name: feature for feature in made.features.tabled} for made in (was, now))
    configs: list[Table | Composed] = []
    kinds = was.embeddings, now.embeddings
    tables = tables_of(now.features, now.model["width"], kinds[1])
    for table, feature in zip(tables, now.features.tabled, strict=True):
        if kinds[0].get(table.name, FULL) != kinds[1].get(table.name, FULL):
            continue
        if isinstance(table, Composed):
            sharing = set[str]().union(*(sharing_rows(table.name, of) for of in kinds))
            same = was.model["width"] == now.model["width"] and all(
                before.get(name) == after.get(name) and kinds[0].get(name) == kinds[1].get(name) for name in sharing
            )
            configs += [table] if same else []
            continue
        stored, had = other.get(f"table/{table.name}/weight"), before.get(feature.name)
        if stored is None or had is None or had.name != table.name or stored.shape[1] != table.width:
            continue
        if why_not_grown(had, feature) is None:
            configs.append(table)
    weights = {name: tensor for name, tensor in other.items() if not name.endswith("accumulator")}
    return fitted_tables(weights, now, configs)


def _of_common_tasks(mine: Tensor, theirs: Tensor, was: tuple[str, ...], now: tuple[str, ...]) -> Tensor:
    """A head's tensor, whose first dimension is tasks: the rows of the tasks that both have are theirs."""
    rows = mine.clone()
    for place, task in enumerate(now):
        if task in was:
            rows[place] = theirs[was.index(task)].to(torch.float32)
    return rows
