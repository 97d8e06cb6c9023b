"""The command line: `exfm NOUN …`.

    console  the command `exfm`: its sub-commands, exit codes and error messages
    options  options that several sub-commands share

Every other file holds the sub-commands of one noun and a function `register(app)` that adds them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
