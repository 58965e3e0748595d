"""Perceptual alignment: the theory, the objectives and the training behind "Humanline" (arXiv 2509.24207).

`humanline.theory` needs numpy and scipy only; `humanline.objectives` needs torch; `humanline.train` needs the
`train` extra. Nothing heavier than its own layer is imported by any of them.
"""

__version__ = "0.1.0"
