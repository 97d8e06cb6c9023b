from .config import SettlementConfig
from .intake import InputTopic, Intake
from .label_join import late_schema
from .merge import Merge
from .settlement import SettledRows, Settlement

__all__ = [
    "InputTopic",
    "Intake",
    "Merge",
    "SettledRows",
    "Settlement",
    "SettlementConfig",
    "late_schema",
]
