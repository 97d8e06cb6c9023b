"""Common base of all programs: the config, the run directory, and the shipped files."""
