"""Structured documents, and the records and files that they are read from."""
