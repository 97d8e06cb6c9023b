"""A teacher beside the stream: planning, scaling, and other offline work."""
