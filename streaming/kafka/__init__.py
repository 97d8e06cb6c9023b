"""Reading and writing Kafka topics.

settings   addresses, security, time-outs
client     the only file that imports the Kafka client; explains its errors
topics     creates topics, asks for offsets
reader     reads partitions from given positions
writer     writes messages, idempotent and acknowledged
retention  checks that topics keep their messages for long enough
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
