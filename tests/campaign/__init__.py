"""Thousands of ways to harm a run, each with a number and a seed: `python -m tests.campaign --help`.

forked.py runs one command in a process of its own and watches it; stage.py judges what came of it; world.py holds what
all cases share. Each module that kinds.py names is one kind of harm: `COUNT` cases, of which `play` makes the n-th and
runs it. A case is a function of its kind, its number and the seed, and of nothing else.
"""
