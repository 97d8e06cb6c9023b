from .files import CONFIGS, config_file, config_names, pinned_list, schema_file

__all__ = [
    "CONFIGS",
    "config_file",
    "config_names",
    "pinned_list",
    "schema_file",
]
