from .console import app, exit_code, main

__all__ = [
    "app",
    "exit_code",
    "main",
]
