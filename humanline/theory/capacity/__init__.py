"""Capacity functions, one file for each kind of family: from a cumulative probability to the one a human perceives."""
