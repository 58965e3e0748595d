"""Training: rows in, an aligned model out (needs the `train` extra). Modules are imported where they are needed."""
