"""Atomic and durable writes: a crash or a power failure never leaves half of anything.

objects       object stores, by one interface: a folder, or S3
s3            objects in a bucket of S3
working_copy  a folder whose flushed files are at an object store
files         replace a file or folder atomically and durably; read and write JSON
lock          an advisory lock on a file
seal          JSON objects with a checksum of their own
spool         rows that wait, in memory up to a bound
segments      batches of rows that are written once and shared by several states
deltas        base and deltas of numbered rows, stored at the cost of what changed
numbered      values of numbered rows, found by number
"""
