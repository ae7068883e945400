"""Readers of files: folders of Markdown, HTML, reStructuredText or JATS become structured documents."""
