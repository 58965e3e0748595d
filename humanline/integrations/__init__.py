"""humanline inside trainers that people already run: one room a tool, which nothing else of the package imports."""
