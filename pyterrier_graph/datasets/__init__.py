"""Datasets with structured documents, and the entry points by which PyTerrier finds them."""
