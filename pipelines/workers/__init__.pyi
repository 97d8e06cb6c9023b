from .ingest import IngestWorker, stream_name
from .keeper import REGISTER_EVERY_S, Keeper
from .ranks import Ranks
from .worker import LOOPBACK, Orders, RankReport, Rendezvous, Report, Stopwatch, Worker, seconds_since

__all__ = [
    "LOOPBACK",
    "REGISTER_EVERY_S",
    "IngestWorker",
    "Keeper",
    "Orders",
    "RankReport",
    "Ranks",
    "Rendezvous",
    "Report",
    "Stopwatch",
    "Worker",
    "seconds_since",
    "stream_name",
]
