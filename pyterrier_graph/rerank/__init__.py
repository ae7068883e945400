"""Rerankers that use a graph, and the rerankers that these are compared with."""
