"""Running ExFM: workers, their lifecycle, tracking and the command line. The only package that sees the other two."""
