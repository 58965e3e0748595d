"""The policy: models loaded, adapted, asked for log-probabilities, saved."""
