from .joined import Joined
from .judged import judge_served
from .log import Logged, read_log

__all__ = [
    "Joined",
    "Logged",
    "judge_served",
    "read_log",
]
