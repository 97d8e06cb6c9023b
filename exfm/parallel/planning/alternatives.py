"""Alternatives to a plan: every strategy by itself, and changes that would make a plan possible.

Nothing here is advice by rule of thumb: the planner made every plan that is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.errors import ConfigError
from exfm.parallel.layout import BY_COLUMNS, GB, ShardingType
from exfm.parallel.planning.placement import Plan, PlanQuestion, find_plan

STRATEGIES: tuple[ShardingType, ...] = get_args(ShardingType)
FREE_SEARCH_S = 30  # a free choice among seven strategies for hundreds of tables takes the planner minutes
MOST_RANKS = 4096
THOROUGH, THOROUGH_S = 5, 5  # thorough searches after the quick ones, at most, and seconds of each


@dataclass(frozen=True)
class Attempt:
    """A way of sharding with its plan, or the reason why there is none."""

    name: str
    plan: Plan | None
    why_not: str = ""


def attempt_strategies(question: PlanQuestion) -> Iterator[Attempt]:
    """All tables by each strategy, then the planner's choice among those that are exact for this optimizer."""
    exact: list[ShardingType] = []
    for strategy in STRATEGIES:
        attempt = _attempt(f"all {strategy}", question.sharded(types=(strategy,), tables={}))
        if not attempt.why_not.startswith(_REFUSED):
            exact.append(strategy)
        yield attempt
    yield _attempt("free choice", question.sharded(types=tuple(exact), tables={}))


_REFUSED = "refused: "


def _attempt(name: str, question: PlanQuestion) -> Attempt:
    try:
        plan = find_plan(question, timeout_s=FREE_SEARCH_S)
    except ConfigError as error:
        return Attempt(name, None, f"{_REFUSED}{error}")
    return Attempt(name, plan) if isinstance(plan, Plan) else Attempt(name, None, f"does not fit: {plan}")


@dataclass(frozen=True)
class Remedy:
    """Changes that make a plan possible: `ranks`, and `sharding.…` and `model.…` by the settings' names."""

    words: str
    changes: dict[str, Any]
    plan: Plan


def find_remedies(question: PlanQuestion) -> Iterator[Remedy]:
    """Search for changes that make room, one at a time: other sharding, another optimizer, more ranks, more memory,
    narrower embeddings."""
    for search in (_other_cuts, _other_optimizer, _more_ranks, _more_memory, _narrower):
        yield from search(question)


def _fits(question: PlanQuestion) -> Plan | None:
    try:
        plan = find_plan(question, quick=True)
    except ConfigError:
        return None
    return plan if isinstance(plan, Plan) else None


def _other_cuts(question: PlanQuestion) -> Iterator[Remedy]:
    """The first that has room. Tables that were pinned are freed where that is needed."""
    sharding = question.sharding
    more = [(*sharding.types, strategy) for strategy in STRATEGIES if strategy not in sharding.types]
    for tables in [sharding.tables, {}] if sharding.tables else [{}]:
        for types in [sharding.types, *more]:
            if (plan := _fits(question.sharded(types=types, tables=tables))) is None:
                continue
            words, changes = [], dict[str, Any]()
            if types != sharding.types:
                words.append(f"allow {types[-1]}")
                changes["sharding.types"] = list(types)
            if tables != sharding.tables:
                words.append(f"let {', '.join(f'`{table}`' for table in sharding.tables)} be cut freely")
                changes["sharding.tables"] = {}
            yield Remedy(" and ".join(words), changes, plan)
            return


def _other_optimizer(question: PlanQuestion) -> Iterator[Remedy]:
    """Element-wise AdaGrad may be cut by columns; row-wise AdaGrad keeps one number a row instead of one a weight."""
    if not question.learns:
        return
    row_wise = question.teacher.sparse_optimizer == "row_wise_adagrad"
    other: SparseOptimizer = "adagrad" if row_wise else "row_wise_adagrad"
    types = question.sharding.types
    if row_wise:
        types = (*types, *(("column_wise",) if "column_wise" not in types else ()))
    else:
        types = tuple(kind for kind in types if kind not in BY_COLUMNS) or ("table_wise",)
    teacher = question.teacher.model_copy(update={"sparse_optimizer": other})
    if (plan := _fits(replace(question.sharded(types=types), teacher=teacher))) is None:
        return
    changes: dict[str, Any] = {"model.sparse_optimizer": other}
    words = "element-wise AdaGrad, cut by columns" if row_wise else "row-wise AdaGrad"
    if types != question.sharding.types:
        changes["sharding.types"] = list(types)
    yield Remedy(words, changes, plan)


def _with_rows_cut(question: PlanQuestion) -> Iterator[tuple[PlanQuestion, str, dict[str, Any]]]:
    """The question, and the same with row-wise cuts where those alone do not help; what to add to a remedy's words."""
    yield question, "", {}
    types: tuple[ShardingType, ...] = (*question.sharding.types, "row_wise")
    wider = question.sharded(types=types)
    if "row_wise" not in question.sharding.types and _fits(wider) is None:
        yield wider, ", and allow row_wise", {"sharding.types": list(types)}


def _more_ranks(question: PlanQuestion) -> Iterator[Remedy]:
    """The fewest ranks, by whole hosts, that have room; with rows cut too, where that needs fewer."""
    by, fewest = question.world.on_a_host if question.sharding.ranks_per_host else 1, MOST_RANKS + 1
    for variant, words, changes in _with_rows_cut(question):
        least = _least(partial(_on_hosts, variant, by), question.ranks // by, MOST_RANKS // by)
        if least is not None and least.question.ranks < fewest:
            fewest = least.question.ranks
            yield Remedy(f"{fewest} ranks instead of {question.ranks}{words}", {"ranks": fewest} | changes, least)


def _on_hosts(question: PlanQuestion, ranks_per_host: int, hosts: int) -> PlanQuestion:
    return replace(question, ranks=hosts * ranks_per_host)


def _more_memory(question: PlanQuestion) -> Iterator[Remedy]:
    """The least memory of a rank, in steps of a hundredth of what it has; with rows cut too, where that needs less."""
    memory, short = question.sharding.memory_gb, find_plan(question, quick=True)
    if memory is None or isinstance(short, Plan):
        return
    needed = math.inf
    for variant, words, changes in _with_rows_cut(question):
        least = _least(partial(_with_memory, variant, memory / 100), 100, math.ceil(200 * short.total / GB / memory))
        sufficient = least and least.question.sharding.memory_gb
        if least and sufficient and sufficient < needed:
            needed = sufficient
            changes = {"sharding.memory_gb": sufficient} | changes
            yield Remedy(f"{sufficient:.6g} GB a rank instead of {memory:g}{words}", changes, least)


def _with_memory(question: PlanQuestion, step_gb: float, steps: int) -> PlanQuestion:
    return question.sharded(memory_gb=round(steps * step_gb, 9))


def _narrower(question: PlanQuestion) -> Iterator[Remedy]:
    """The widest embeddings that have room; with rows cut too, where they can be wider."""
    width, widest = question.teacher.width, 0
    own = [feature.width for feature in question.features.sparse if feature.width]
    wider_first = [w for w in range(width, 0, -4) if not any(own_width % w for own_width in own)]
    for variant, words, changes in _with_rows_cut(question):
        least = _least(partial(_of_width, variant, wider_first), 0, len(wider_first) - 1)
        if least is not None and least.question.teacher.width > widest:
            widest = least.question.teacher.width
            changes = {"model.width": widest} | changes
            yield Remedy(f"embeddings {widest} wide instead of {width}{words}", changes, least)


def _of_width(question: PlanQuestion, widths: Sequence[int], place: int) -> PlanQuestion:
    return replace(question, teacher=question.teacher.model_copy(update={"width": widths[place]}))


def _least(ask: Callable[[int], PlanQuestion], too_little: int, limit: int) -> Plan | None:
    """The plan of the least n up to `limit` that has room, where `too_little` has none; by doubling, then halving.

    That is done by quick searches. A thorough one may still find room for a few less.
    """
    low, high, plan = too_little, too_little, None
    while plan is None:
        if high >= limit:
            return None
        low, high = high, min(max(2 * high, 1), limit)
        plan = _fits(ask(high))
    while high - low > 1:
        middle = (low + high) // 2
        fitting = _fits(ask(middle))
        low, high, plan = (middle, high, plan) if fitting is None else (low, middle, fitting)
    for less in range(high - 1, max(too_little, high - 1 - THOROUGH), -1):
        thorough = find_plan(ask(less), timeout_s=THOROUGH_S)
        if not isinstance(thorough, Plan):
            break
        plan = thorough
    return plan
