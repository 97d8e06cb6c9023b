from .advice import WARM_IMPRESSIONS, next_step
from .age import TENTHS, worse_by_age
from .champion import Champion, champion_of, gain_tags, outcomes_of
from .counts import UNMATCHED, counts_hold, counts_of
from .figures import CLUSTER_ROWS, MODELS, clustered_by
from .losses import MOST_EARLY_MS, Losses, Severity, judged, losses_in, losses_now, losses_of
from .picture import draw
from .stored import current, read_summary
from .summary import PACKAGES, Summary, rows_hold, summarise
from .verdict import JUDGED, NO_ROW, Outcome, outcome_of, saw_no_row, verdict_on

__all__ = [
    "CLUSTER_ROWS",
    "JUDGED",
    "MODELS",
    "MOST_EARLY_MS",
    "NO_ROW",
    "PACKAGES",
    "TENTHS",
    "UNMATCHED",
    "WARM_IMPRESSIONS",
    "Champion",
    "Losses",
    "Outcome",
    "Severity",
    "Summary",
    "champion_of",
    "clustered_by",
    "counts_hold",
    "counts_of",
    "current",
    "draw",
    "gain_tags",
    "judged",
    "losses_in",
    "losses_now",
    "losses_of",
    "next_step",
    "outcome_of",
    "outcomes_of",
    "read_summary",
    "rows_hold",
    "saw_no_row",
    "summarise",
    "verdict_on",
    "worse_by_age",
]
