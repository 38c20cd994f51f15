"""Moments in lines of logs: dates of several styles to UTC ns. A date without a zone is taken as if it were UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

_FULL = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d(?![\d:]))?")
_GLOG = re.compile(r"(?<![A-Za-z0-9])[IWEF](1[0-2]|0?[1-9])([0-3]\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")
_KERNEL = re.compile(r"\[?[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\]?")
_SYSLOG = re.compile(r"^([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) ")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(slots=True)
class Stamps:
    """Reads the moments of one file's lines.

    The watchdog's own stamps have no year: it is the one of the last full date of the file, else the newest one in
    which the date is not after ``modified_ns``, when the file was last written to.
    """

    modified_ns: int | None = None
    year: int | None = None
    has_local: bool = False
    """Whether any moment so far named no zone."""

    def moment_ns(self, line: str) -> int | None:
        """The moment that a line tells, UTC ns; None for none, or for one that no calendar has."""
        try:
            return self._moment(line[:400])
        except (ValueError, OverflowError):
            return None

    def _moment(self, line: str) -> int | None:
        if found := _GLOG.search(line):
            month, day, hour, minute, second = (int(found[number]) for number in range(1, 6))
            return self._without_year(month, day, hour, minute, second, found[6])
        if found := _FULL.search(line):
            self.year = int(found[1])
            numbers = [int(found[number]) for number in range(1, 7)]
            zone = _zone(found[8])
            self.has_local |= found[8] is None
            return _ns(datetime(*numbers, tzinfo=zone), found[7])  # type: ignore[arg-type,misc]
        if found := _KERNEL.search(line):
            self.year = int(found[6])
            self.has_local = True
            month = _MONTHS.index(found[1]) + 1
            numbers = [int(found[number]) for number in range(2, 6)]
            return _ns(datetime(self.year, month, *numbers, tzinfo=UTC), None)  # type: ignore[arg-type,misc]
        if (found := _SYSLOG.match(line)) and found[1] in _MONTHS:
            day, hour, minute, second = (int(found[number]) for number in range(2, 6))
            return self._without_year(_MONTHS.index(found[1]) + 1, day, hour, minute, second, None)
        return None

    def _without_year(self, month: int, day: int, hour: int, minute: int, second: int, part: str | None) -> int | None:
        self.has_local = True
        if self.year is not None:
            return _ns(datetime(self.year, month, day, hour, minute, second, tzinfo=UTC), part)
        if self.modified_ns is None:
            return None
        newest = datetime.fromtimestamp(self.modified_ns / 1e9, UTC) + timedelta(days=1)  # zones differ by less
        moment = datetime(newest.year, month, day, hour, minute, second, tzinfo=UTC)
        return _ns(moment if moment <= newest else moment.replace(year=newest.year - 1), part)


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _ns(moment: datetime, part: str | None) -> int:
    """Whole ns; ``part`` are the digits behind the second."""
    return int(moment.timestamp()) * 10**9 + (int(part.ljust(9, "0")) if part else 0)
