"""Errors a caller can act on: what was asked, what is possible, what to try."""


class StreamingError(Exception):
    """A problem in a source, a topic or the lake, told in words for the person who runs the stream."""


class BadInput(StreamingError):
    """The caller's mistake (a config, a file, an option). The command line exits with 2."""


class BrokerAway(StreamingError):
    """No Kafka broker answers. Nothing is lost; it is waited for (`kafka.give_up_s`)."""


class DiskFull(StreamingError):
    """The disk takes no more. Nothing half written is read; it is waited for (`resources.disk_give_up_s`)."""


class DataLost(StreamingError):
    """What a reader or a worker needs to go on is gone for good: deleted by retention, a topic made anew, a state that
    was lost or altered. It is told, never retried or skipped."""
