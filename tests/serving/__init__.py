"""The HTTP service as its clients see it."""
