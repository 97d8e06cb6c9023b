"""Errors a caller can act on: what was asked, what is possible, what to try."""


class ModelError(Exception):
    """A problem in a model, a checkpoint or a batch, told in words."""


class ConfigError(ModelError, ValueError):
    """The caller's mistake in a model's configuration. The command line exits with 2."""


class Diverged(ModelError):
    """Batch after batch is not finite: the model, or its input, is beyond what starting again can mend."""


class Unusable(ModelError):
    """What was saved cannot be gone on from, however often it is tried."""


class NewerFormat(Unusable):
    """Saved by a later release than this one, and not to be taken for damaged."""
