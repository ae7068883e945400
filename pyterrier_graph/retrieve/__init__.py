"""Dense retrieval: vectors of passages that know their graph, and dual-encoders that are trained."""
