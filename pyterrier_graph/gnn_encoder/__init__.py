"""The GNN-encoder (Liu et al. 2022)."""
