"""Hostile input for everything that reads files or frames: ``python -m tests.fuzz --minutes 10``.

A *target* makes an input from a random generator and gives it to the package. Allowed is a result, and an error that a
``raise`` statement of this package or of PyTerrier makes, with a message. Everything else is a finding: an error from
inside of pandas, torch or Python itself, more than ten seconds, more than 4 GiB, a process that dies.
"""
