"""Graphs over passages: stored on disk, held in memory, or built in a pipeline."""
