from .package import cache_folder, compile_served

__all__ = ["cache_folder", "compile_served"]
