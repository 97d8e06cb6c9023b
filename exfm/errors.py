"""Errors a caller can act on: the message says the request, the options and a remedy."""


class ModelError(Exception):
    """A problem in a model, a checkpoint or a batch, described by the message."""


class ConfigError(ModelError, ValueError):
    """A mistake in a model's configuration. The command line exits with 2."""


class Diverged(ModelError):
    """Several batches in a row were not finite: the model or its input is broken, and a restart does not help."""


class Unusable(ModelError):
    """The saved state cannot be resumed, and trying again does not help."""


class OtherFormat(Unusable):
    """State in a format that this version does not read. It is not damaged."""
