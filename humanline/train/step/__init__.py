"""A step: references, losses, held-out metrics."""
