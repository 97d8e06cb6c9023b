"""The command line: `exfm NOUN …`.

    console    the command `exfm`: its sub-commands, exit codes and error messages
    tools/     options that several sub-commands share; tools for runs and data, used by single commands
    teachers/  the sub-commands about teachers

Every other file holds the sub-commands of one noun and a function `register(app)` that adds them.
"""
