"""What launchers and schedulers write when processes end: torchrun's report, srun, Slurm, the kernel's killer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .facts import Ending, Exit, Place, Speaker

_ROOT = "Root Cause (first observed failure)"
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|traceback|error_file)\s*:\s*(.*?)\s*$")
_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_SRUN = re.compile(r"srun: error: ([\w.-]+): tasks? ([\d,-]+): (.*)$")
_SRUN_CODE = re.compile(r"[Ee]xited with exit code (\d+)")
_OOM_KILL = re.compile(r"[Dd]etected \d+ oom[-_]kill event")
_SIGNALS = {
    "Killed": -9,
    "Out Of Memory": -9,
    "Segmentation fault": -11,
    "Aborted": -6,
    "Terminated": -15,
    "Bus error": -7,
}
_ENDINGS = (
    (re.compile(r"CANCELLED AT|DUE TO TIME LIMIT|DUE TO PREEMPTION|DUE TO NODE FAILURE"), "interrupted"),
    (re.compile(r"Main process received SIGTERM|got signal: (?:2|15)\b|^KeyboardInterrupt\b"), "interrupted"),
    (re.compile(r"\[after training is done\]|exiting program (?:at|after)"), "finished"),
)
MOST_TASKS = 4096


@dataclass(slots=True)
class Report:
    """Follows torchrun's report of failures, which is one entry over several lines; also what stands on one line."""

    _place: Place | None = None
    _root: bool = False
    _told: dict[str, str] | None = None

    def take(self, text: str, moment_ns: int | None, place: Place) -> list[Exit]:
        """Take a line; the exits that it completes. ``moment_ns`` is the line's own, if it has one."""
        if _ROOT in text:
            self._root = True
            return []
        if re.match(r"^\s*\[\d+\]:\s*$", text):
            self._told, self._place = {}, place
            return []
        if self._told is not None and (found := _FIELD.match(text)):
            self._told.setdefault(found[1], found[2])
            if found[1] == "time" and moment_ns is not None:
                self._told["moment"] = str(moment_ns)
            return self._complete() if found[1] == "traceback" else []
        if text.strip() == "Failures:":
            self._root = False
        if found := _FAILED.search(text):
            speaker = Speaker(local_rank=int(found[2]))
            return [Exit(speaker, int(found[1]), int(found[3]), False, None, moment_ns, place)]
        return _of_srun(text, moment_ns, place)

    def _complete(self) -> list[Exit]:
        told, place, self._told = self._told or {}, self._place, None
        rank, code = _RANK.search(told.get("rank", "")), _CODE.search(told.get("exitcode", ""))
        if rank is None or place is None:
            return []
        message = told["traceback"]
        return [
            Exit(
                Speaker(int(rank[1]), int(rank[2]), told.get("host") or None),
                None if code is None else int(code[1]), None if code is None else int(code[2]),
                self._root,
                None if message.startswith("To enable traceback") else message[:300],
                int(told["moment"]) if "moment" in told else None, place,
            )
        ]  # fmt: skip


def _of_srun(text: str, moment_ns: int | None, place: Place) -> list[Exit]:
    """Tasks that srun says ended; a task is a rank (one is started for each)."""
    if _OOM_KILL.search(text):
        return [Exit(Speaker(), -9, None, False, "the kernel's out-of-memory killer", moment_ns, place)]
    found = _SRUN.search(text)
    if found is None:
        return []
    code = _SRUN_CODE.search(found[3])
    number = int(code[1]) if code else next((one for word, one in _SIGNALS.items() if word in found[3]), None)
    if number is None:
        return []
    tasks = _tasks(found[2])
    return [
        Exit(Speaker(task, None, found[1]), number, None, False, found[3][:200], moment_ns, place) for task in tasks
    ]


def _tasks(text: str) -> list[int]:
    """`3,8-10` as numbers; a list longer than any host's is cut."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            tasks += range(int(first), min(int(last or first), int(first) + MOST_TASKS) + 1)
    return tasks[:MOST_TASKS]


def ending(text: str, moment_ns: int | None, place: Place) -> Ending | None:
    """What a line says of the end of the whole job, if anything."""
    for pattern, reason in _ENDINGS:
        if pattern.search(text):
            return Ending(reason, text.strip()[:200], moment_ns, place)
    return None
