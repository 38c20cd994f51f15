"""One log file to facts: a single pass, what is known of its lines taken, all else passed over."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from .clocks import Times
from .device_errors import device_error
from .facts import (
    DesyncReport,
    DeviceError,
    DumpSignal,
    Ending,
    Exit,
    GpuFault,
    LinkError,
    LogFile,
    Member,
    Place,
    Raised,
    Speaker,
    Stuck,
    Timeout,
    Watermark,
)
from .launchers import Report, ending
from .lines import LineReader
from .nccl import gpu_fault, nccl_fact
from .speakers import NOBODY, is_labelled, process_of, split_speaker
from .stamps import Stamps
from .tracebacks import Tracebacks
from .watchdog import Fact, group_label, watchdog_facts

MOST = 200_000
"""So many facts are kept of a file; further ones are counted."""

STEPS_AFTER = 3
"""A trouble after which so many iterations were printed was got over, or is an earlier start's."""

_WORTH = (
    b"atchdog", b"NCCL", b"[PG ", b"dump signal", b"best knowledge", b"collective #", b"Traceback", b"NVRM", b"ignal",
    b"SIG", b"srun", b"slurmstepd", b"oom", b"Root Cause", b"exitcode", b"Failures:", b"iteration", b"Error", b"CUDA",
    b"Exception", b"what()", b"world", b" : ", b"is done", b"exiting", b"Keyboard", b"handling of", b"direct cause",
    b"imed out", b"step", b"nterrupt",
)  # fmt: skip
"""One of these is in every line that is looked at closely; most lines of a log have none."""

_ENTRY = 12
"""Bytes of the lines that begin an entry of torchrun's report (`[0]:`), at most."""

_PREFIX = re.compile(rb"\[rank(\d{1,7})\]:")
_STEP = re.compile(r"(?:\biteration\s+|\bsteps?[:=] ?)(\d{1,12})\b(?:\s*/\s*\d+)?")
_WORLD = re.compile(r"(?:using world size: |\bworld[_ ]size\D{1,12}?)(\d{1,7})\b")
_SIZE = re.compile(r"initialization options: ?size: (\d+), global rank: (\d+)")
_FATAL = re.compile(
    r"(?:what\(\): +|terminated with exception: )(?:\[[^\]]*\] )?"
    r"((?:CUDA|HIP) error|NCCL error[^,]*|[\w.]*Error)?:? ?(.*)"
)
_BARE = re.compile(r"^(torch\.(?:cuda\.)?OutOfMemoryError|RuntimeError|torch\.AcceleratorError): (CUDA .*)$")

Anything = Fact | Raised | Exit | LinkError | DeviceError | GpuFault | Ending


@dataclass(slots=True)
class FileFacts:
    """What one file gave, with the ranks as far as its own lines and its name tell them."""

    file: LogFile
    facts: list[Anything]
    members: list[Member]
    sizes: dict[str, int]
    hosts: dict[int, str]
    heard: set[int]
    prefixes: set[int]
    world_size: int | None
    last_step: int | None
    last_ns: int | None
    dropped: int
    times: Times


def read_file(path: Path, name: str, speaker: Speaker, progress: Callable[[int], None] | None = None) -> FileFacts:
    """Read one file; ``speaker`` is what its name tells, ``progress`` is told of lines now and then."""
    reader = LineReader(path)
    taking = _Taking(name, speaker, Stamps(_modified_ns(path)))
    first: list[str] = []
    lines = iter(reader)
    for number, raw in lines:
        if len(first) < 20:
            first.append(raw.decode("utf-8", "replace"))
            taking.labelled = len(first) == 20 and is_labelled(first)
            if len(first) == 20:
                for at, text in enumerate(first, number - 19):
                    taking.take(at, text)
            continue
        if taking.has_open or _is_worth(raw):
            taking.take(number, raw.decode("utf-8", "replace"))
        elif speaks := _PREFIX.match(raw):
            taking.prefixes.add(int(speaks[1]))
        if progress is not None and number % 50_000 == 0:
            progress(number)
    if len(first) < 20:
        taking.labelled = is_labelled(first)
        for at, text in enumerate(first, 1):
            taking.take(at, text)
    return taking.finish(LogFile(name, reader.lines, reader.cut_lines, reader.trouble))


def _is_worth(raw: bytes) -> bool:
    return (len(raw) <= _ENTRY and b"]:" in raw) or any(word in raw for word in _WORTH)


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@dataclass(slots=True)
class _Taking:
    """The state of one pass."""

    name: str
    speaker: Speaker
    stamps: Stamps
    labelled: bool = False
    kept: list[tuple[int, Anything]] = field(default_factory=list)  # with the iterations printed before
    seen: set[object] = field(default_factory=set)
    members: dict[tuple[str, int, str], Member] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    prefixes: set[int] = field(default_factory=set)
    raised: set[Speaker] = field(default_factory=set)
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    report: Report = field(default_factory=Report)
    world_size: int | None = None
    last_step: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    steps: int = 0
    dropped: int = 0
    has_open: bool = False

    def take(self, number: int, line: str) -> None:
        """One line of the file."""
        speaker, text = split_speaker(line, labelled=self.labelled)
        if speaker.rank is not None:
            self.prefixes.add(speaker.rank)
            if speaker.host is not None:
                self.hosts[speaker.rank] = speaker.host
        place = Place(self.name, number)
        moment_ns = self.stamps.moment_ns(text)
        if moment_ns is not None:
            self.first_ns = moment_ns if self.first_ns is None else self.first_ns
            self.last_ns = max(self.last_ns or 0, moment_ns)
        if "NCCL" in text and process_of(text) is not None:
            self._of_nccl(text, speaker, place)
            return
        self._of_watchdog(text, speaker, moment_ns, place)
        self._of_exceptions(text, speaker, moment_ns, place)
        if not self.has_open and (error := device_error(text, speaker, moment_ns, place)) is not None:
            self._keep(error, ("device", speaker, error.name))
        for one in self.report.take(text, moment_ns, place):
            self._keep(one, ("exit", one.speaker, one.code, one.is_root))
        if (fault := gpu_fault(text, speaker, moment_ns, place)) is not None:
            self._keep(fault, ("xid", fault.host, fault.bus_id, fault.xid))
        if (end := ending(text, moment_ns, place)) is not None:
            self._keep(end, ("end", end.reason))
        self._of_progress(text)

    def _of_nccl(self, text: str, speaker: Speaker, place: Place) -> None:
        if "comm 0x" not in text and "WARN" not in text:
            return
        found = nccl_fact(text, speaker, place)
        if isinstance(found, Member):
            self.members[found.host, found.pid, found.pointer] = found
        elif found is not None:
            self._keep(found, ("link", found.speaker, found.peer, found.status))

    def _of_watchdog(self, text: str, speaker: Speaker, moment_ns: int | None, place: Place) -> None:
        if (
            "[PG" not in text
            and "Rank " not in text
            and "ranks" not in text
            and "Barrier" not in text
            and "collective #" not in text
        ):
            return
        for fact in watchdog_facts(text, speaker.rank, moment_ns, place):
            self._keep(fact, _key(fact))
        if found := _SIZE.search(text):
            label, _ = group_label(text)
            if label is not None and label.identity is not None:
                self.sizes[label.identity] = int(found[1])
            if label is not None and label.is_world:
                self.world_size = int(found[1])

    def _of_exceptions(self, text: str, speaker: Speaker, moment_ns: int | None, place: Place) -> None:
        raised = self.tracebacks.take(speaker, text, moment_ns, place)
        self.has_open = self.tracebacks.has_open
        if raised is None and "Watchdog caught" not in text and not self.tracebacks.is_open(speaker):
            raised = _fatal(text, speaker, moment_ns, place)
        if raised is not None and (speaker not in self.raised or speaker == Speaker()):
            self.raised.add(speaker)
            self._keep(raised, ("raised", speaker, raised.type, raised.message))

    def _of_progress(self, text: str) -> None:
        if found := _WORLD.search(text):
            self.world_size = self.world_size or int(found[1]) or None
        if ("iteration" in text or "step" in text) and (found := _STEP.search(text)):
            step = int(found[1])
            if step != self.last_step:
                self.steps, self.last_step = self.steps + 1, step
                if self.steps % 64 == 0:
                    self._forget()

    def _forget(self) -> None:
        """Drop what the job got over: it printed iterations afterwards."""
        self.kept = [(steps, fact) for steps, fact in self.kept if self.steps - steps < STEPS_AFTER]
        self.seen.clear()
        self.raised.clear()

    def _keep(self, fact: Anything, key: object) -> None:
        if key in self.seen:
            return
        if len(self.kept) >= MOST:
            self.dropped += 1
            return
        self.seen.add(key)
        self.kept.append((self.steps, fact))

    def finish(self, file: LogFile) -> FileFacts:
        """All facts that still hold at the end of the file, with the file's rank where their line names none."""
        self._forget()
        is_of_one = self.speaker != NOBODY and len(self.prefixes) == 1
        own = Speaker(next(iter(self.prefixes)), self.speaker.local_rank) if is_of_one else self.speaker
        facts = [_named(fact, own if len(self.prefixes) < 2 else NOBODY) for _, fact in self.kept]
        heard = self.prefixes | ({own.rank} if own.rank is not None and file.lines else set())
        is_kernel = bool(facts) and not heard and all(isinstance(one, GpuFault) for one in facts)
        return FileFacts(
            file, facts, list(self.members.values()), self.sizes, self.hosts, heard, self.prefixes, self.world_size,
            self.last_step, self.last_ns, self.dropped,
            Times(self.name, self.first_ns, self.last_ns, not self.stamps.has_local, is_kernel),
        )  # fmt: skip


def _key(fact: Fact) -> object:
    """What makes two lines of a watchdog one fact: they are written again when its process ends."""
    match fact:
        case Timeout():
            return ("timeout", fact.rank, fact.group_rank, fact.label, fact.sequence, fact.operation)
        case Watermark():
            return ("mark", fact.rank, fact.group_rank, fact.label, fact.failed, fact.enqueued, fact.completed)
        case _:
            return replace(fact, place=Place("", 0))


def _fatal(text: str, speaker: Speaker, moment_ns: int | None, place: Place) -> Raised | None:
    """An error that ended a process without a traceback of Python, or whose traceback was not kept."""
    if found := _BARE.match(text):
        return Raised(speaker, found[1], found[2][:500], None, moment_ns, place)
    if "what()" not in text and "terminated with exception" not in text:
        return None
    found = _FATAL.search(text)
    if found is None or (not found[1] and not found[2]):
        return None
    label, group_rank = group_label(text)
    if speaker.rank is None and label is not None and label.is_world:
        speaker = Speaker(group_rank, speaker.local_rank, speaker.host)
    return Raised(speaker, found[1] or "error", found[2].strip()[:500], None, moment_ns, place)


def _named(fact: Anything, own: Speaker) -> Anything:
    """A fact with the rank of its file, where its line does not name one."""
    match fact:
        case Raised() | LinkError() | DeviceError():
            if fact.speaker.rank is None and own.rank is not None:
                return replace(fact, speaker=Speaker(own.rank, own.local_rank, fact.speaker.host or own.host))
        case Timeout() | Watermark() | DumpSignal() | Stuck():
            if fact.rank is None and own.rank is not None:
                return replace(fact, rank=own.rank)
        case Exit() | GpuFault() | Ending() | DesyncReport():
            pass
    return fact
