"""Placement of a teacher's tables: bytes and predicted cost of every rank, before anything is allocated.

No rank is started and nothing is allocated: the tables stand on the meta device, and the planner is the one that
training asks (exfm/parallel/planner.py). So any world can be asked about from one process.

    >>> from exfm.features.features import FeatureSet, SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="user", rows=10**9), SparseFeature(name="ad", rows=10**6)])
    >>> found = find_plan(PlanQuestion(features, TeacherConfig(width=16), Sharding(memory_gb=80), ranks=64))
    >>> found.tables[0].strategy, found.tables[0].weight_bytes
    ('table_wise', 64000000000)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.proposers import GreedyProposer, GridSearchProposer, UniformProposer
from torchrec.distributed.planner.types import PartitionByType, PlannerError, ShardingOption, Topology

from exfm.features.features import FeatureSet
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_wide import all_tables
from exfm.parallel.layout import Device, RankLayout, Sharding
from exfm.parallel.planner import optimizer_bytes, quiet_torchrec, weight_bytes
from exfm.parallel.planning.cost import parameter_count
from exfm.parallel.sharding import TableGroup, TableSharder, planned_model, sharding_planner

QUICK_S = 10  # the longest that a quick search may take


@dataclass(frozen=True)
class PlanQuestion:
    """A teacher and its ranks; `sharding` as `teacher.sharding` of a config."""

    features: FeatureSet
    teacher: TeacherConfig
    sharding: Sharding = field(default_factory=Sharding)
    ranks: int = 1
    device: Device = "cpu"
    batch_rows: int = 2048  # rows of one step over all ranks
    tasks: tuple[str, ...] = ("ctr",)
    learns: bool = True  # False: it only scores, without optimizer and gradients

    @cached_property
    def parts(self) -> dict[str, TableGroup]:
        """All tables that ranks hold: `tables` of the network, `events` of its sequence model and `wide` of the linear
        part, if any."""
        return all_tables(self.teacher, self.features, len(self.tasks), learns=self.learns)

    @property
    def world(self) -> RankLayout:
        return self.sharding.world(self.ranks, self.device, self.batch_rows)

    def sharded(self, **changes: Any) -> PlanQuestion:
        """The same question with other sharding settings.

        Raises ValidationError for settings that `Sharding` does not take.
        """
        return replace(self, sharding=Sharding.model_validate(self.sharding.model_dump() | changes))

    @cached_property
    def dense_bytes(self) -> int:
        """Bytes of the dense part, which every rank holds; for learning, including its gradients and Adam's two
        moments."""
        dense = parameter_count(self.teacher, self.features, len(self.tasks)).dense
        return 4 * dense * (4 if self.learns else 1)


class StepCost(NamedTuple):
    """Milliseconds of one step, as TorchRec's model counts them."""

    forward_compute: float = 0.0
    forward_comms: float = 0.0
    backward_compute: float = 0.0
    backward_comms: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)

    @staticmethod
    def sum(costs: Sequence[StepCost]) -> StepCost:
        return StepCost(*(sum(parts) for parts in zip(*costs, strict=True))) if costs else StepCost()


@dataclass(frozen=True)
class PlannedShard:
    """A window of a table on one rank. `exchange_bytes`: ids and embeddings of a step, as the planner counts them."""

    rank: int
    offset: tuple[int, int]
    size: tuple[int, int]  # rows, columns
    weight_bytes: int
    optimizer_bytes: int
    exchange_bytes: int
    cost: StepCost

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.optimizer_bytes + self.exchange_bytes


@dataclass(frozen=True)
class TablePlan:
    """One table and its pieces; rows and width are the whole table's."""

    name: str
    rows: int
    width: int
    strategy: str
    pieces: tuple[PlannedShard, ...]

    @property
    def ranks(self) -> list[int]:
        return sorted({piece.rank for piece in self.pieces})

    @property
    def weight_bytes(self) -> int:
        """Bytes over all ranks; replicated tables count once per rank."""
        return sum(piece.weight_bytes for piece in self.pieces)

    @property
    def optimizer_bytes(self) -> int:
        return sum(piece.optimizer_bytes for piece in self.pieces)


@dataclass(frozen=True)
class RankLoad:
    """Bytes and cost of one rank."""

    rank: int
    weight_bytes: int
    optimizer_bytes: int
    exchange_bytes: int
    cost: StepCost

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.optimizer_bytes + self.exchange_bytes


@dataclass(frozen=True)
class Plan:
    """A plan that fits, by table and by rank. A step costs what its slowest rank costs."""

    question: PlanQuestion
    tables: tuple[TablePlan, ...]  # of the network
    linear: tuple[TablePlan, ...]  # of the linear part, one for each of the network's

    @cached_property
    def ranks(self) -> list[RankLoad]:
        pieces: list[list[PlannedShard]] = [[] for _ in range(self.question.ranks)]
        for table in (*self.tables, *self.linear):
            for piece in table.pieces:
                pieces[piece.rank].append(piece)
        return [
            RankLoad(
                rank,
                sum(p.weight_bytes for p in mine),
                sum(p.optimizer_bytes for p in mine),
                sum(p.exchange_bytes for p in mine),
                StepCost.sum([p.cost for p in mine]),
            )
            for rank, mine in enumerate(pieces)
        ]

    @property
    def bottleneck(self) -> RankLoad:
        return max(self.ranks, key=lambda load: load.cost.total)

    @property
    def fullest(self) -> RankLoad:
        return max(self.ranks, key=lambda load: load.bytes)

    @property
    def cost_ms(self) -> float:
        return self.bottleneck.cost.total

    @property
    def imbalance(self) -> float:
        """The slowest rank's cost over the mean: 1 is even."""
        mean = sum(load.cost.total for load in self.ranks) / len(self.ranks)
        return self.cost_ms / mean if mean else 1.0


@dataclass(frozen=True)
class Shortage:
    """The table that did not fit, in the proposal that came closest."""

    table: str
    strategy: str
    needs: int  # bytes that must go to one place
    free: int  # of the place with most
    place: str  # `device` or `host`
    total: int  # bytes of all tables in this proposal
    capacity: int  # bytes of all ranks
    called: str = ""  # what follows the table's name: which part of the teacher it is of
    reason: str = ""  # set when memory is not the cause

    def __str__(self) -> str:
        table = f"table `{self.table}`{self.called}"
        if self.reason:
            return f"{table} cannot be cut {self.strategy} here: {self.reason}"
        return (
            f"{table} ({self.strategy}) needs {format_bytes(self.needs)} on one {self.place}, "
            f"the largest free {self.place} has {format_bytes(self.free)}"
        )


def find_plan(question: PlanQuestion, *, quick: bool = False, timeout_s: int | None = None) -> Plan | Shortage:
    """The plan that training would make, or the shortage that prevents it.

    `quick` finds out whether there is a plan, and takes the first; `timeout_s` ends the search for better ones.

    Raises ConfigError where `sharding` does not suit the tables or the ranks.
    """
    with quiet_torchrec():
        asked: Any = sharding_planner(question.parts, question.sharding, question.world)
        asked._partitioner = partitioner = _RecordingPartitioner()
        partitioner.parts = question.parts
        asked._timeout_seconds = timeout_s
        if quick:
            asked._timeout_seconds = QUICK_S
            partitioner.placed = lambda: setattr(asked, "_timeout_seconds", 1e-9)  # one plan is enough
            asked._proposers = [UniformProposer(), GridSearchProposer(max_proposals=100), GreedyProposer(threshold=20)]
        try:
            asked.plan(planned_model(question.parts), [TableSharder.of(question.sharding)])
        except PlannerError:
            assert partitioner.shortage is not None
            return partitioner.shortage
    return _plan_of(question, asked)


def _plan_of(question: PlanQuestion, planner: Any) -> Plan:
    """The planner's best plan, by table."""
    found: dict[str, dict[str, TablePlan]] = {part: {} for part in ("tables", "events", "wide")}
    for option in cast(list[ShardingOption], planner._best_plan):
        kind, pieces = question.parts[option.path].optimizer, []
        for shard in option.shards:
            weights, optimizer = weight_bytes(shard.size), optimizer_bytes(shard.size, kind)
            stored = shard.storage.hbm + shard.storage.ddr
            perf = shard.perf
            pieces.append(
                PlannedShard(
                    shard.rank,
                    tuple(shard.offset),
                    tuple(shard.size),
                    weights,
                    optimizer,
                    stored - weights - optimizer,
                    StepCost(perf.fwd_compute, perf.fwd_comms, perf.bwd_compute, perf.bwd_comms),
                )
            )
        rows, width = option.tensor.shape
        found[option.path][option.name] = TablePlan(option.name, rows, width, option.sharding_type, tuple(pieces))
    tables, events, linear = (
        tuple(found[part][table.name] for table in question.parts[part].tables) if part in question.parts else ()
        for part in found
    )
    return Plan(question, tables + events, linear)


class _RecordingPartitioner(GreedyPerfPartitioner):
    """TorchRec's partitioner, which also records the shard that it could not place."""

    parts: Mapping[str, TableGroup]
    shortage: Shortage | None = None
    placed: Callable[[], None] = staticmethod(lambda: None)  # called when a proposal found its places

    def partition(
        self, proposal: list[ShardingOption], storage_constraint: Topology, hbm_per_device: int | None = None
    ) -> list[ShardingOption]:
        try:
            found = super().partition(proposal, storage_constraint, hbm_per_device)
            self.placed()
            return found
        except PlannerError as error:
            shortage = _shortage(proposal, storage_constraint, self.parts)
            if shortage.needs <= shortage.free:
                shortage = replace(shortage, reason=str(error))
            if self.shortage is None or shortage.needs - shortage.free < self.shortage.needs - self.shortage.free:
                self.shortage = shortage
            raise


def _shortage(proposal: list[ShardingOption], topology: Topology, parts: Mapping[str, TableGroup]) -> Shortage:
    """Shortage of memory for the shards that were not placed. The partitioner has written ranks into the shards it
    placed, largest tables first."""

    def held(option_or_device: Any) -> int:
        storage = option_or_device.storage
        return storage.hbm if topology.compute_device == "cuda" else storage.ddr

    def whole(option: ShardingOption) -> int:
        return sum(held(shard) for shard in option.shards)

    uniform = [o for o in proposal if o.partition_by == PartitionByType.UNIFORM.value]
    others = sorted((o for o in proposal if o not in uniform), key=whole, reverse=True)
    free = [held(device) for device in topology.devices]
    total, capacity = sum(map(whole, proposal)), sum(free)
    for option in [*uniform, *others]:
        called = parts[option.path].called
        lacking = [shard for shard in option.shards if shard.rank is None]
        if option.partition_by in (PartitionByType.HOST.value, PartitionByType.MULTI_HOST.value) and lacking:
            host = topology.local_world_size
            most = max(sum(free[i : i + host]) for i in range(0, len(free), host))
            return Shortage(option.name, option.sharding_type, whole(option), most, "host", total, capacity, called)
        for shard in option.shards:
            if shard.rank is None:
                needs = held(shard)
                most = max(free)
                return Shortage(option.name, option.sharding_type, needs, most, "device", total, capacity, called)
            free[shard.rank] -= held(shard)
    raise AssertionError("every shard was placed")


def format_bytes(bytes_: float) -> str:
    """Format bytes for people.

    >>> format_bytes(41_234_567_890), format_bytes(6_400)
    ('41.2 GB', '6.4 kB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.3g} {unit}"
    return f"{bytes_:.0f} B"
