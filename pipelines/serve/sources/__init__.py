"""Sources of versions: the registry of a run, a student in training, or MLflow's registry.

model_source what every origin says: which version is to be served
run         runs/demo, student `feed`: the ledger's champion or candidate; or the newest export
live        the same student as it learns, increment by increment
registered  models:/demo-feed@champion: the version that the alias names; /3 is that version for good
chosen      origins by the names that people give
"""
