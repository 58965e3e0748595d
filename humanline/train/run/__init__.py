"""A run: what outlives its processes, and how these agree and watch each other."""
