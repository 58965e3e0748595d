"""Runs that make their own data: rounds of sampling, scoring and selection."""
