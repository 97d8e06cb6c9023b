from .ingest import IngestWorker, files_name, stream_name
from .keeper import REGISTER_EVERY_S, Keeper
from .ranks import LOOPBACK, Ranks, Rendezvous
from .report import RankReport, Report
from .stopwatch import Stopwatch
from .worker import Orders, Worker, seconds_since

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
    "files_name",
    "seconds_since",
    "stream_name",
]
