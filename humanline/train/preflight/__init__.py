"""Before a run: whether it could start, and whether it fits."""
