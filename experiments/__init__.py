"""Benchmarks: run from a clone of the repository, not part of the installed package."""
