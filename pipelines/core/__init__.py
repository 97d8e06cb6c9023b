"""Common base of all programs.

config/    the config: sections, defaults, identity, evolution
run_dir/   paths and small files of a run directory
shipped/   files that come with the package
access     who may ask a server: its address, token and certificate
patched    context manager that replaces attributes of third-party modules
"""
