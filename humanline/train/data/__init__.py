"""Data: rows -> examples -> token sequences -> units -> the batch of a step."""
