from .config import SettlementConfig
from .intake import InputTopic, Intake
from .label_join import late_schema
from .merge import Merge
from .settlement import OTHER_VERTICALS, SettledRows, Settlement

__all__ = [
    "OTHER_VERTICALS",
    "InputTopic",
    "Intake",
    "Merge",
    "SettledRows",
    "Settlement",
    "SettlementConfig",
    "late_schema",
]
