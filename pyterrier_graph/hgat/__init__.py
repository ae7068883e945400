"""Heterogeneous graph attention networks (Albarede et al. 2023)."""
