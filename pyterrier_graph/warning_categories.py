"""The categories of the package's warnings, so that they can be shown, hidden or made errors by themselves.

``warnings.simplefilter("error", ptg.PyTerrierGraphWarning)`` makes all of them errors.
"""


class PyTerrierGraphWarning(UserWarning):
    """A warning of this package; it says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class DataWarning(PyTerrierGraphWarning):
    """Something in files or frames does not fit together, and is left out."""


class QualityWarning(PyTerrierGraphWarning):
    """Results are worse than they could be."""


class SpeedWarning(PyTerrierGraphWarning):
    """Something takes longer than it need."""
