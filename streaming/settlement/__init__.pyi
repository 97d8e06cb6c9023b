from .admission import RAN_AWAY, Verticals
from .config import FUTURE_SKEW_S, SettlementConfig
from .emission import settled_bytes
from .intake import InputTopic, Intake
from .label_join import late_schema
from .merge import END_OF_TIME, Merge, set_back, with_partitions
from .settlement import OTHER_VERTICALS, SettledRows, Settlement

__all__ = [
    "END_OF_TIME",
    "FUTURE_SKEW_S",
    "OTHER_VERTICALS",
    "RAN_AWAY",
    "InputTopic",
    "Intake",
    "Merge",
    "SettledRows",
    "Settlement",
    "SettlementConfig",
    "Verticals",
    "late_schema",
    "set_back",
    "settled_bytes",
    "with_partitions",
]
