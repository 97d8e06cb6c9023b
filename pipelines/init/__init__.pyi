from .proposal import Asked, Begun, begin, summary

__all__ = [
    "Asked",
    "Begun",
    "begin",
    "summary",
]
