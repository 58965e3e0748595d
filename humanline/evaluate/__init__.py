"""What data will do, how good a model is, and whether a difference is real."""
