"""Search over several rankings, and over folders of files."""
