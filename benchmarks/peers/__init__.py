"""The contestants: scripts that run as subprocesses, each in its own environment."""
