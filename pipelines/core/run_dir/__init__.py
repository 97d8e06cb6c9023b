"""Paths and small files of a run directory.

paths           every file and folder of a run directory, by name
logs            the log of each process, rotated
object_storage  runs on object storage: their working copies on this machine
lease           what somebody wants now
lake_link       the run whose lake this one follows
place           which folder a run directory is, and whether it is a copy
roster          who is to be a student beyond what the config says, and what came of it
forgotten       ids that a run was asked to forget, and where each worker did
erasures        persons whose rows were erased, and an erasure that was begun
moves           moves to other topics, begun and done
end_offsets     where topics that others feed ended when a bounded run began
"""
