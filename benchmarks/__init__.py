"""Speed and memory, side by side with what a user would otherwise run: `python -m benchmarks`."""
