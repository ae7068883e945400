"""Artifacts that are written completely or not at all, arrays on disk, and long work that can be interrupted."""
