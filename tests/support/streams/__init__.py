"""Rows and messages: scripted, written by hand, broken; the contracts of sources and sinks; a reference settlement."""
