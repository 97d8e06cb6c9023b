from .files import CONFIGS, config_file, config_names, pinned_list

__all__ = [
    "CONFIGS",
    "config_file",
    "config_names",
    "pinned_list",
]
