"""Python tracebacks in logs: the first exception of each speaker's chain, with where it was raised."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .facts import Place, Raised, Speaker

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in (\S+)')
_EXCEPTION = re.compile(r"^(?=[\w.]*[a-z])([A-Za-z_][\w.]*[A-Z]\w*)(?:: ?(.*))?$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MOST_LINES = 2_000
_MESSAGE = 500
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python")


@dataclass(slots=True)
class _Open:
    """A traceback that has begun and whose exception has not come yet."""

    place: Place
    moment_ns: int | None
    frame: str | None = None
    own_frame: str | None = None
    lines: int = 0


@dataclass(slots=True)
class Tracebacks:
    """Follows the tracebacks of one file; every speaker has his own, so that lines of several may alternate."""

    _open: dict[Speaker, _Open] = field(default_factory=dict)
    _chained: set[Speaker] = field(default_factory=set)

    def take(self, speaker: Speaker, text: str, moment_ns: int | None, place: Place) -> Raised | None:
        """Take a line; the exception that it ends, unless that only followed from the one before it in its chain."""
        if text.rstrip().endswith(_HEADER):
            self._open[speaker] = _Open(place, moment_ns)
        elif any(phrase in text for phrase in _CHAINED):
            self._chained.add(speaker)
        elif speaker in self._open:
            return self._inside(self._open[speaker], speaker, text)
        return None

    def _inside(self, known: _Open, speaker: Speaker, text: str) -> Raised | None:
        known.lines += 1
        if frame := _FRAME.match(text):
            _add_frame(known, frame)
        found = None if text.startswith((" ", "\t")) else _EXCEPTION.match(text)
        if found is None:
            if known.lines > _MOST_LINES:
                del self._open[speaker]
            return None
        del self._open[speaker]
        if speaker in self._chained:
            self._chained.discard(speaker)
            return None
        message = (found[2] or "").strip()[:_MESSAGE]
        return Raised(speaker, found[1], message, known.own_frame or known.frame, known.moment_ns, known.place)

    @property
    def has_open(self) -> bool:
        """Whether any traceback has begun and not ended."""
        return bool(self._open)

    def is_open(self, speaker: Speaker) -> bool:
        """Whether a traceback of this speaker has begun and not ended."""
        return speaker in self._open


def _add_frame(known: _Open, found: re.Match[str]) -> None:
    """Keep the innermost frame, and the innermost that is in no library: that is the user's own line."""
    told = f"{found[3]} ({found[1].rpartition('/')[2]}:{found[2]})"
    known.frame = told
    if not any(part in found[1] for part in _LIBRARIES):
        known.own_frame = told
