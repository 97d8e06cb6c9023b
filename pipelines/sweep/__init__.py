"""Many students on the same logged stream: which arm pays, with intervals."""
