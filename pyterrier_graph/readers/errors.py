"""The error of a file that cannot be read."""


class ReaderError(ValueError):
    """A file that cannot be read. The message says why; where it leaves a reader, it names the file."""
