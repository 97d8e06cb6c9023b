from .package import Packages, cache_folder

__all__ = ["Packages", "cache_folder"]
