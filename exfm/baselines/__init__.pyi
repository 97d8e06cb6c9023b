from .baseline import Baseline
from .constant import Constant
from .ftrl import FTRL, Seen, served_linear
from .logistic import Logistic

__all__ = ["FTRL", "Baseline", "Constant", "Logistic", "Seen", "served_linear"]
