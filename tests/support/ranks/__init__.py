"""Groups of processes that train or score together."""
