"""What a page shows, as it stands in the URL: parsed strictly, written back without loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ..profiler.errors import UsageError

METRICS = {
    "self": "self time (without children and waiting)",
    "duration": "duration (with children and waiting)",
    "exposed": "exposed waiting",
    "count": "number of spans",
    "p50": "median span (self time)",
    "p99": "99th percentile of spans (self time)",
    "transfer": "transfer (end minus last arrival)",
}
SHOWN = {
    "ratio": "ratio to peers",
    "value": "value",
    "z": "z (distance from peers in their spread)",
}
SHAPES = {
    "steps": "ranks by steps",
    "hosts": "hosts by GPUs",
}
OVER = {
    "mean": "mean of the steps",
    "worst": "worst step",
}

MARKS = ("path", "arrows", "waiting")
"""What the timeline draws over its spans, and can leave out."""

HULLS = {"hosts": "hosts", "racks": "racks"}
"""What the 3D picture draws hulls around."""

MOST_RANKS = 4096
"""So many ranks can be named."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the URL can hold. None (or empty) means: the page's own choice.

    ``steps`` and ``zoom`` are inclusive; ``zoom`` is (first row, last row, first step, last step) of the heatmap, whose
    rows are single ranks, ``t`` the seconds from and to that the timeline shows, counted from its first span,
    ``scroll`` how far down it is (pixels); ``camera`` is how the 3D picture is turned (two angles, radians), enlarged
    and moved (pixels right, down). ``since`` and ``until`` are moments in UTC ns between which the steps began;
    ``above`` is the ratio to peers from which on cells stand out; ``shape``, ``group`` and ``over`` lay the heatmap
    out. ``beside`` is what the timeline shows a second time (STEP, ATTEMPT:STEP or ATTEMPT:STEP:RUN); ``rows`` fits its
    rows to the screen, ``hide`` leaves marks out. Of the 3D picture, ``look`` is the moment (UTC ns) that its slider
    stands at, ``along`` the axes that lie along x, y and z, ``hulls`` what is drawn around the ranks that belong to it.
    ``host`` and ``incident`` are what is opened of a list.
    """

    run: str | None = None
    attempt: int | None = None
    segment: str | None = None
    metric: str | None = None
    show: str | None = None
    order: str | None = None
    steps: tuple[int, int] | None = None
    rank: int | None = None
    axis: str | None = None
    ranks: tuple[int, ...] = ()
    find: str | None = None
    moment: int | None = None
    around: str | None = None
    q: str | None = None
    zoom: tuple[int, ...] | None = None
    t: tuple[float, float] | None = None
    scroll: int | None = None
    camera: tuple[float, ...] | None = None
    since: int | None = None
    until: int | None = None
    shape: str | None = None
    group: str | None = None
    over: str | None = None
    above: float | None = None
    beside: str | None = None
    rows: str | None = None
    hide: str | None = None
    look: int | None = None
    along: str | None = None
    hulls: str | None = None
    host: str | None = None
    incident: str | None = None

    def search(self) -> str:
        """The query part of the URL, with its question mark; empty if nothing was chosen."""
        pairs = [(field.name, _written(field.name, getattr(self, field.name))) for field in fields(self)]
        query = urlencode([(name, text) for name, text in pairs if text], safe=":,")
        return f"?{query}" if query else ""

    def url(self, path: str, **changes: Any) -> str:
        """The address of a page at this view with some values changed."""
        return path + replace(self, **changes).search()

    def same_job(self) -> View:
        """Only the run and the attempt: what a link to another page carries along."""
        return View(run=self.run, attempt=self.attempt)


def ranks_text(ranks: Sequence[int], limit: int | None = None) -> str:
    """Ranks in their order, neighbours as ranges: "0,5,8-15"; cut after ``limit`` parts where it is for people."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if limit is None:
        return ",".join(parts)
    return ", ".join(parts[:limit]) + (", ..." if len(parts) > limit else "")


def _written(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "ranks":
        return ranks_text(value) if isinstance(value, tuple) else ""
    if name in {"since", "until"} and isinstance(value, int):
        return moment_text(value).replace(" ", "T")
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, tuple):
        return ":".join(f"{item:.9g}" if isinstance(item, float) else str(item) for item in value)
    return str(value)


def moment_text(moment_ns: int | None) -> str:
    """A moment in UTC as it is written in fields and addresses, to the microsecond where it has such a part."""
    if moment_ns is None:
        return ""
    seconds, rest = divmod(moment_ns, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return text + (f".{rest // 1000:06}" if rest else "")


def parse_view(search: str | None) -> View:
    """Read the query part of a URL. Raises UsageError naming the parameter, its value and what is accepted."""
    values: dict[str, Any] = {}
    for name, text in parse_qsl((search or "").removeprefix("?"), keep_blank_values=True):
        if name not in _PARSERS:
            known = ", ".join(sorted(_PARSERS))
            raise UsageError(f"The address has a parameter {name!r} that no page knows. Known are: {known}.")
        if text:
            values[name] = _parse(name, text)
    return View(**values)


def _parse(name: str, text: str) -> Any:
    parser, wanted = _PARSERS[name]
    try:
        return parser(text)
    except ValueError:
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise UsageError(f"The address has {name}={shown!r}, but {name} must be {wanted}.") from None


def _whole(text: str) -> int:
    number = int(text)
    if number < 0 or number >= 2**63:
        raise ValueError
    return number


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    pair = (_whole(first), _whole(last or first))
    if pair[0] > pair[1]:
        raise ValueError
    return pair


def _four(text: str) -> tuple[int, ...]:
    numbers = tuple(_whole(part) for part in text.split(":"))
    if len(numbers) != 4 or numbers[0] > numbers[1] or numbers[2] > numbers[3]:
        raise ValueError
    return numbers


def _seconds(text: str) -> tuple[float, float]:
    first, _, last = text.partition(":")
    pair = (float(first), float(last))
    if not (-1e12 < pair[0] < pair[1] < 1e12):
        raise ValueError
    return pair


def _five(text: str) -> tuple[float, ...]:
    numbers = tuple(float(part) for part in text.split(":"))
    if len(numbers) != 5 or not all(-1e6 < number < 1e6 for number in numbers):
        raise ValueError
    return numbers


def _moment(text: str) -> int:
    moment = datetime.fromisoformat(text.strip().removesuffix("UTC").strip())
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if aware.year < 1970 or aware.year > 2200:
        raise ValueError
    return round((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6) * 1000


def _ratio(text: str) -> float:
    ratio = float(text)
    if not 1 <= ratio <= 1000:
        raise ValueError
    return ratio


def _beside(text: str) -> str:
    parts = text.split(":", 2)
    for part in parts[:2]:
        _whole(part)
    return text


def _axes(text: str) -> str:
    parts = text.split(":")
    if len(parts) > 3 or len(set(parts)) != len(parts) or not all(parts):
        raise ValueError
    return text


def _hidden(text: str) -> str:
    if not set(text.split(",")) <= set(MARKS):
        raise ValueError
    return text


def _ranks(text: str) -> tuple[int, ...]:
    ranks: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = _whole(first), _whole(last or first)
        if end < start or len(ranks) + end - start >= MOST_RANKS:
            raise ValueError
        ranks.update(dict.fromkeys(range(start, end + 1)))
    return tuple(ranks)


def _one_of(words: dict[str, str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return parse


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "run": (str, "the name of a run"),
    "attempt": (_whole, "a whole number, such as 0"),
    "segment": (str, "the name of a segment"),
    "metric": (_one_of(METRICS), "one of " + ", ".join(METRICS)),
    "show": (_one_of(SHOWN), "one of " + ", ".join(SHOWN)),
    "order": (str, "rank, worst, host or an axis"),
    "group": (str, "host or an axis"),
    "shape": (_one_of(SHAPES), "one of " + ", ".join(SHAPES)),
    "over": (_one_of(OVER), "one of " + ", ".join(OVER)),
    "above": (_ratio, "a ratio from 1 on, such as 1.1"),
    "since": (_moment, "a time in UTC, such as 2026-01-31 14:05"),
    "until": (_moment, "a time in UTC, such as 2026-01-31 14:05"),
    "steps": (_range, "a step or a range of steps, such as 20:40"),
    "rank": (_whole, "a rank, such as 5"),
    "axis": (str, "an axis of the mesh, or all"),
    "ranks": (_ranks, f"a list of ranks, {MOST_RANKS:,} at most, such as 0,5,8-15"),
    "find": (str, "a text"),
    "moment": (_whole, "a moment in UTC nanoseconds"),
    "around": (str, "all or involved"),
    "q": (str, "an SQL query"),
    "beside": (_beside, "STEP, ATTEMPT:STEP or ATTEMPT:STEP:RUN"),
    "rows": (_one_of({"fit": ""}), "fit"),
    "hide": (_hidden, "some of " + ", ".join(MARKS)),
    "zoom": (_four, "four whole numbers, first and last row and step, such as 0:63:20:40"),
    "t": (_seconds, "two numbers of seconds, such as 0.5:1.25"),
    "scroll": (_whole, "a whole number of pixels"),
    "look": (_whole, "a moment in UTC nanoseconds"),
    "along": (_axes, "three axes of the mesh at most, such as tp:dp:pp"),
    "hulls": (_one_of(HULLS), "one of " + ", ".join(HULLS)),
    "host": (str, "the name of a host"),
    "incident": (str, "the name of an incident"),
    "camera": (_five, "five numbers, such as -0.6:0.42:1:0:0"),
}
