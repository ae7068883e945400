"""Artifacts that are written completely or not at all, arrays on disk, and work that can be interrupted."""
