"""Epochs of stores, and moments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Dict, Optional, Union

#: A moment: a `datetime` (one without a time zone is local time), or seconds since 1970.
Moment = Union[datetime, float, int]

_STATES = ("open", "closed", "kept")


@dataclass(frozen=True)
class Waterfall:
    """What became of the reports of an epoch (`docs/history.md`)."""

    #: Reports that translators received, those that landed, and frames; `None` if the epoch began before the collector did.
    sent: Optional[int]
    landed: Optional[int]
    frames: Optional[int]
    #: Reports or frames of all stores that did not get there, by reason.
    lost: Dict[str, int]
    #: For lists: batches that were overwritten before they were read, never came, or were damaged.
    overwritten: int
    missing: int
    damaged: int

    @classmethod
    def from_message(cls, message: Any) -> Waterfall:
        """From a message `dta.v1.Waterfall`."""
        sent, landed, frames = (
            getattr(message, name) if message.HasField(name) else None for name in ("sent", "landed", "frames")
        )
        lost = {reason.name: reason.value for reason in message.lost}
        batches = message.overwritten_batches, message.missing_batches, message.damaged_batches
        return cls(sent, landed, frames, lost, *batches)


@dataclass(frozen=True)
class Epoch:
    """A span of time in which one memory of a store took its reports. What is not known yet is `None`."""

    #: The generation of its memory, as in `Store.generation`.
    generation: int
    #: `open`, `closed` (over, and in memory) or `kept` (in the history).
    state: str
    #: When the memory was opened to writers.
    opened: datetime
    #: When the first of its writers was moved to the next epoch, and when the last one had moved.
    ended: Optional[datetime]
    closed: Optional[datetime]
    #: Whether all writers confirmed that they had moved, and the collector ran throughout.
    complete: Optional[bool]
    #: When the collector started in the middle of it: reports that came while it was down are missing.
    restarted: Optional[datetime]
    #: For a kept epoch: used slots, and its number in the table.
    rows: Optional[int]
    number: Optional[int]
    #: For a kept epoch of a sketch: the number that reporters gave it.
    sketch: Optional[int]
    #: For a kept epoch: what became of its reports.
    waterfall: Optional[Waterfall] = field(hash=False)

    @classmethod
    def from_message(cls, message: Any) -> Epoch:
        """From a message `dta.v1.Epoch`."""
        state = _STATES[message.state]
        kept = state == "kept"
        return cls(
            message.generation,
            state,
            _moment(message.opened),
            _moment(message.flipped_from) if message.flipped_from else None,
            _moment(message.flipped_to) if message.flipped_to else None,
            message.confirmed and not message.restarted if kept else None,
            _moment(message.restarted) if message.restarted else None,
            message.rows if kept else None,
            message.number if kept else None,
            message.sketch if message.HasField("sketch") else None,
            Waterfall.from_message(message.waterfall) if message.HasField("waterfall") else None,
        )


@dataclass(frozen=True)
class EarlierEpoch:
    """An epoch before the one that was asked, in which an answer was reported."""

    #: When it began, and when the next one did.
    opened: datetime
    closed: datetime
    #: Its number in the table; `None` while it is in memory.
    number: Optional[int]

    @classmethod
    def from_message(cls, answer: Any) -> Optional[EarlierEpoch]:
        """From an answer; `None` if it was reported in the epoch that was asked."""
        if not answer.HasField("earlier"):
            return None
        epoch = answer.earlier
        return cls(_moment(epoch.opened), _moment(epoch.closed), epoch.number or None)


def millis(moment: Optional[Moment]) -> int:
    """Milliseconds since 1970 that have begun by then; 0 for `None`."""
    if moment is None:
        return 0
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    # Now must not be in the future; a float of seconds is sometimes a little too small.
    return max(math.floor(seconds * 1000 + 0.001), 1)


def _moment(at: int) -> datetime:
    # Exact, unlike a float of seconds.
    return datetime.fromtimestamp(at // 1000, timezone.utc).replace(microsecond=at % 1000 * 1000)
