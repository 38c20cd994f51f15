"""The errors that users see: one sentence each, and the exit code that goes with it."""

from __future__ import annotations


class MegascopeError(Exception):
    """The input cannot be analysed. The message says what, where, and what to do."""

    exit_code = 1


class UsageError(MegascopeError, ValueError):
    """The request itself is wrong: a flag, a configuration value, a layout."""

    exit_code = 2


class FormatError(MegascopeError, ValueError):
    """A file is not what it should be: damaged, of a newer version, or of another kind."""
