from .ingest import IngestWorker, files_name, stream_name
from .keeper import REGISTER_EVERY_S, Keeper, Resumable
from .ranks import LOOPBACK, Ranks, Rendezvous
from .report import RankReport, Report
from .stopwatch import Stopwatch
from .worker import IDLE_S, Orders, Worker, seconds_since

__all__ = [
    "IDLE_S",
    "LOOPBACK",
    "REGISTER_EVERY_S",
    "IngestWorker",
    "Keeper",
    "Orders",
    "RankReport",
    "Ranks",
    "Rendezvous",
    "Report",
    "Resumable",
    "Stopwatch",
    "Worker",
    "files_name",
    "seconds_since",
    "stream_name",
]
