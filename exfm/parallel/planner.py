"""TorchRec's planner with this project's inputs: ranks, their speed of computing and communicating, bytes of a shard.

Training and `exfm plan` ask through `make_planner`, so that what is printed is what is trained.

The cost of a plan is that of its slowest rank: bytes looked up and exchanged in one step, divided by bandwidths. There
is no latency in the model: read its milliseconds as a comparison of plans, not as a clock.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.config import EmbeddingPerfEstimatorConfig
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    BasicCommsBandwidths,
    CollectiveType,
    GeneralizedCommsBandwidth,
    ParameterConstraints,
    Perf,
    ShardingOption,
    Storage,
)
from torchrec.distributed.types import ShardingType
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from exfm.parallel.layout import GB, Device, RankLayout

_PER_MS = 1e-3  # TorchRec's bandwidths are bytes per millisecond


class GlooBandwidths(GeneralizedCommsBandwidth):
    """Bytes of one rank's buffer per ms over gloo: on one machine as measured for 1–16 MB, between hosts 10 Gbit/s.

    Partial sums and their gradients travel all-to-all too (exfm/parallel/tables.py).
    """

    intra_host_bw = 2.5e9 * _PER_MS
    inter_host_bw = 1.25e9 * _PER_MS
    _all_reduce_bw = 1.0e9 * _PER_MS

    def get_bw(self, local_world_size: int, world_size: int, collective_type: CollectiveType) -> float:
        within = self._all_reduce_bw if collective_type is CollectiveType.ALL_REDUCE else self.intra_host_bw
        return within if world_size <= local_world_size else min(within, self.inter_host_bw)


class Costs(EmbeddingPerfEstimatorConfig):
    """TorchRec's cost model of a shard. A model that only scores pays for no backward pass."""

    def __init__(self, device: Device, learns: bool):
        self._learns = learns
        if device == "cpu":  # the penalties for widths below 128 are those of a GPU's thread blocks
            self._use_block_usage_penalty = self._use_min_dim_for_lookup = False

    def post_process_perfs(self, shard_perfs: list[Perf], *args: Any, **kwargs: Any) -> list[Perf]:
        if not self._learns:
            for perf in shard_perfs:
                perf.bwd_compute = perf.bwd_comms = 0.0
        return shard_perfs


@dataclass(frozen=True)
class Hardware:
    """Constants that predicted costs are in. `lookup_gb_s` counts ids, rows read and outputs written."""

    lookup_gb_s: float
    backward_per_forward: float
    comms: GeneralizedCommsBandwidth
    source: str

    @staticmethod
    def of(device: Device) -> Hardware:
        return _HARDWARE[device]


_HARDWARE: dict[Device, Hardware] = {
    "cpu": Hardware(5.0, 1.5, GlooBandwidths(), "a core and gloo, measured with 2 ranks on 2 cores"),
    "cuda": Hardware(
        897 * 1.024**3,
        2.0,
        BasicCommsBandwidths(),
        "TorchRec's own constants: HBM 963 GB/s, 644 GB/s within a host, 13 GB/s between hosts",
    ),
}


def make_planner(
    world: RankLayout, constraints: Mapping[str, ParameterConstraints], optimizers: Mapping[str, str | None]
) -> EmbeddingShardingPlanner:
    """A planner for `world`; needs no process group.

    `constraints` by table, `optimizers` by the part of the model that tables are in: `row_wise_adagrad`, `adagrad` or
    None, for tables that do not learn.
    """
    with quiet_torchrec():
        return _planner(world, constraints, optimizers)


def _planner(
    world: RankLayout, constraints: Mapping[str, ParameterConstraints], optimizers: Mapping[str, str | None]
) -> EmbeddingShardingPlanner:
    hardware = Hardware.of(world.device)
    topology = Topology(
        world_size=world.ranks,
        local_world_size=world.on_a_host,
        compute_device=world.device,
        hbm_cap=world.capacity_bytes,
        ddr_cap=world.capacity_bytes,
        ssd_cap=0,
        hbm_mem_bw=hardware.lookup_gb_s * GB * _PER_MS,
        ddr_mem_bw=hardware.lookup_gb_s * GB * _PER_MS,
        bwd_compute_multiplier=hardware.backward_per_forward,
        generalized_comms_bandwidths=hardware.comms,
    )
    batch = max(1, math.ceil(world.batch_rows / world.ranks))
    in_fast_memory = {name: _in_fast_memory(constraint) for name, constraint in constraints.items()}
    costs = Costs(world.device, learns=any(optimizers.values()))
    enumerator = InOneOrder(
        topology,
        batch,
        in_fast_memory,
        [
            EmbeddingPerfEstimator(topology, in_fast_memory, config=costs),
            TableBytes(topology, in_fast_memory, optimizers),
        ],
    )
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch,
        constraints=in_fast_memory,
        enumerator=enumerator,
        storage_reservation=FixedPercentageStorageReservation(0.0),
        stats=[],
        debug=False,
    )


def _in_fast_memory(constraint: ParameterConstraints) -> ParameterConstraints:
    """Tables live in the memory of the device that computes: neither in unified memory nor on disk."""
    constraint.compute_kernels = [EmbeddingComputeKernel.FUSED.value, EmbeddingComputeKernel.DENSE.value]
    return constraint


class InOneOrder(EmbeddingEnumerator):
    """Tries strategies in one order. TorchRec takes the order of a set of strings, which differs between processes."""

    def _filter_sharding_types(self, name: str, allowed_sharding_types: list[str], sharder_key: str = "") -> list[str]:
        return sorted(super()._filter_sharding_types(name, allowed_sharding_types, sharder_key))


class TableBytes(EmbeddingStorageEstimator):
    """TorchRec's estimate of a shard's bytes, corrected in two places.

    Row-wise AdaGrad keeps 4 B for every row of a piece, however few of the table's columns it has; TorchRec counts
    their share. A table on every rank has a gradient as large as itself, and once more while that is summed over ranks;
    TorchRec counts none.
    """

    def __init__(
        self, topology: Topology, constraints: dict[str, ParameterConstraints], optimizers: Mapping[str, str | None]
    ):
        super().__init__(topology=topology, constraints=constraints)
        self._optimizers = optimizers

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        super().estimate(sharding_options, sharder_data_map)
        on_cpu = self._topology.compute_device == "cpu"
        for option in sharding_options:
            optimizer = self._optimizers[option.path]
            for shard in option.shards:
                missing = optimizer_bytes(shard.size, optimizer) - _counted(option, shard.size)
                if option.sharding_type == ShardingType.DATA_PARALLEL.value and optimizer:
                    missing += 2 * weight_bytes(shard.size)
                shard.storage += Storage(hbm=0 if on_cpu else missing, ddr=missing if on_cpu else 0)


def weight_bytes(size: list[int]) -> int:
    """Bytes of a float32 piece of (rows, width)."""
    return 4 * math.prod(size)


def optimizer_bytes(size: list[int], optimizer: str | None) -> int:
    """Bytes of optimizer state of a shard: one float per row, or one per weight; 0 without an optimizer."""
    return {None: 0, "row_wise_adagrad": 4 * size[0], "adagrad": weight_bytes(size)}[optimizer]


def _counted(option: ShardingOption, size: list[int]) -> int:
    """The optimizer's bytes that TorchRec has counted, by the optimizer that the table was given so far."""
    classes = getattr(option.tensor, "_optimizer_classes", ())
    share = option.tensor.shape[1] if RowWiseAdagrad in classes else 1
    return math.ceil(weight_bytes(size) / share) if classes else 0


@contextmanager
def quiet_torchrec() -> Iterator[None]:
    """Silence TorchRec's warnings about topologies and dense estimates that do not matter here, and its logs of
    arguments and errors."""
    loggers = [logging.getLogger(name) for name in ("", "torchrec", "MethodLogger-NullHandler")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
