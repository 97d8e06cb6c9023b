"""Whole small runs: their configs, what they leave, the command in a process, and a hail of kills on it."""
