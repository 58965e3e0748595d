"""Tools of the house that training, simulator, figures and commands share: files, locks, signals, text (no torch)."""
