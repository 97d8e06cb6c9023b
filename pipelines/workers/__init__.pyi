from .ingest import IngestWorker, stream_name
from .model import REGISTER_EVERY_S, ModelWorker
from .ranks import Ranks
from .worker import LOOPBACK, Orders, RankReport, Rendezvous, Report, Stopwatch, Worker, seconds_since

__all__ = [
    "LOOPBACK",
    "REGISTER_EVERY_S",
    "IngestWorker",
    "ModelWorker",
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
