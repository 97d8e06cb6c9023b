"""Errors a caller can act on: what was asked, what is possible, what to try."""


class StreamingError(Exception):
    """A problem in a source, a topic or the lake, explained to the person who runs the stream."""


class BadInput(StreamingError):
    """The caller's mistake (a config, a file, an option). The command line exits with 2."""


class BrokerAway(StreamingError):
    """No Kafka broker answers. Nothing is lost; workers wait for it (`kafka.give_up_s`)."""


class NotAdmitted(StreamingError):
    """A Kafka broker answers and does not let us in: a user, a password or a certificate that it does not accept. The
    command line exits with 2; a worker of a run that was let in before is started again, as after a crash."""


class DiskFull(StreamingError):
    """The disk is full. No half-written file is ever read; workers wait for space (`resources.disk_give_up_s`)."""


class DataLost(StreamingError):
    """Data that a reader or worker needs to continue is gone for good: deleted by retention, a topic created anew, a
    state lost or altered. It is reported, never retried or skipped."""
