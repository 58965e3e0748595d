"""Tools that training, simulator, figures and commands share, without torch: files, locks, signals, text."""
