from .package import Packages

__all__ = ["Packages"]
