"""The parts of :mod:`experiments.ablation`."""
