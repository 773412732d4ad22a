"""Errors, split by whose fault they are.

    AdaptiveDDError
    |-- UsageError          the user's: a flag, an env variable or a config value   (exit 2)
    |-- InputFileError      the user's: a frontier, policy, prompt or journal file  (exit 2)
    |-- UpstreamError       the server's: not there, refused, or not what was expected (exit 1)
    `-- StoreError          the machine's: disk full, read-only, database damaged   (exit 1)

A message is one line: what, where, what was expected.
"""


class AdaptiveDDError(Exception):
    """Base of everything that this package raises on purpose."""

    exit_code = 1


class UsageError(AdaptiveDDError):
    """A flag, environment variable or config value is wrong."""

    exit_code = 2


class InputFileError(AdaptiveDDError):
    """A file that the user named cannot be read or is not what it must be."""

    exit_code = 2


class UpstreamError(AdaptiveDDError):
    """The server is not there, refused, or answered something else than expected."""


class StoreError(AdaptiveDDError):
    """The journal or another file of ours could not be read or written."""
