"""A run: what outlives a process, and the processes of it."""
