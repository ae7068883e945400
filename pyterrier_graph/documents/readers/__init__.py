"""Readers of files: folders of Markdown, HTML or reStructuredText become structured documents."""
