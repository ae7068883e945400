"""Datasets with structured documents, and how PyTerrier finds them."""
