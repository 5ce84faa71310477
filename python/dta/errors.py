"""What can go wrong, in words that say what to do."""

from __future__ import annotations


class Error(Exception):
    """Any error of this package."""


class BadKey(Error, ValueError):
    """A text or some bytes are no key."""


class RegionError(Error):
    """A file is not a region file, or not a whole one."""


class AskError(Error):
    """A question cannot be answered: an unknown store, another kind of store, or a collector that refuses or is away."""


class NoSuchStore(AskError, KeyError):
    """There is no store of that name."""

    def __str__(self) -> str:
        # A KeyError would show its text in quotes.
        return Exception.__str__(self)
