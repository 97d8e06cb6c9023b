"""A live run: its loop, its workers and where they run."""
