"""Errors a caller can act on: what was asked, what is possible, what to try."""


class StreamingError(Exception):
    """A problem in a source, a topic or the lake, told in words for the person who runs the stream."""


class BadInput(StreamingError):
    """The caller's mistake (a config, a file, an option). The command line exits with 2."""
