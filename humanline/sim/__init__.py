"""The simulator: the objectives that train language models, on problems small enough to be exact (needs torch)."""
