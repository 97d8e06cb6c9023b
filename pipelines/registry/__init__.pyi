from .ledger import CONCLUSION, HAND, POLICY, Entry, Ledger, LedgerWriter, standing_after
from .standing import Action, Standing, twin_version

__all__ = [
    "CONCLUSION",
    "HAND",
    "POLICY",
    "Action",
    "Entry",
    "Ledger",
    "LedgerWriter",
    "Standing",
    "standing_after",
    "twin_version",
]
