"""Readers of files: every format becomes HTML, and one walk turns HTML into structured documents."""
