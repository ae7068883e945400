"""Late interaction along a graph: GraphMaxSim."""
