"""Errors; their messages say what to do."""

from __future__ import annotations


class Error(Exception):
    """Any error of this package."""


class BadKey(Error, ValueError):
    """A text or some bytes are not a key."""


class RegionError(Error):
    """A file is not a complete region file."""


class AskError(Error):
    """A query cannot be answered: an unknown store, another kind of store, or a collector that refuses or is unreachable."""


class NoSuchStore(AskError, KeyError):
    """There is no store of that name."""

    def __str__(self) -> str:
        # A KeyError would print its text in quotes.
        return Exception.__str__(self)
