"""Late interaction along a graph: GraphMaxSim, and its index."""
