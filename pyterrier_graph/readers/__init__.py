"""Readers of documents: records, and files of several formats, as structured documents."""
