"""Aggregation without a network: GraphMean, contextual vectors and their index."""
