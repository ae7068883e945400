"""The parts of :mod:`experiments.collections_left_out`."""
