"""Benchmarks of jaxtribute against its peers: `python -m benchmarks NAME`."""
