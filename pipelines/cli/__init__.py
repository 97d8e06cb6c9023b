"""The command line: `exfm NOUN …`.

    console  the command `exfm`: its sub-commands, exit codes and error messages
    options  options that several sub-commands share
    tools/   tools for runs and data, used by single commands

Every other file holds the sub-commands of one noun and a function `register(app)` that adds them.
"""
