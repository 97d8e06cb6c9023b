"""What every program stands on: the config, the run directory, and the files that are shipped."""
