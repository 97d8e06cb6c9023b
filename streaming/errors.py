"""Errors a caller can act on: the message says the request, the options and a remedy."""


class StreamingError(Exception):
    """A problem in a source, a topic or the lake, explained to the person who runs the stream."""


class BadInput(StreamingError):
    """The caller's mistake (a config, a file, an option). The command line exits with 2."""


class BrokerAway(StreamingError):
    """Error for a Kafka broker that does not answer. Nothing is lost; workers wait for it (`kafka.give_up_s`)."""


class NotAdmitted(StreamingError):
    """A Kafka broker rejects our user, password or certificate. The command line exits with 2; a worker of a run
    that was let in before is started again, as after a crash."""


class StillHeld(StreamingError):
    """Another process holds what one alone may write to; it is waited for (`resources.restart_window_s`), since it may
    be on a machine that is out of reach."""


class RankLost(ConnectionError):
    """Another process of the same worker has ended, or is out of reach; what it ended of is to be told."""


class DiskFull(StreamingError):
    """The disk is full. No half-written file is ever read; workers wait for space (`resources.disk_give_up_s`)."""


class DataLost(StreamingError):
    """Data that a reader or worker needs is gone for good: deleted by retention, topic recreated, state lost or
    altered. It is reported, never retried or skipped."""
