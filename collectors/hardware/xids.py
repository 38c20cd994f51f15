"""What the number of an Xid means: errors of a GPU that the NVIDIA driver writes into the kernel's log.

Numbers and causes follow NVIDIA's catalog (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), in
our own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Blame(StrEnum):
    """What an Xid speaks against."""

    PROGRAM = "program"
    DEVICE = "device"
    LINK = "link"
    DRIVER = "driver"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Xid:
    """One number: what it means, what it speaks against, and whether work on the GPU goes on after it."""

    number: int
    meaning: str
    blame: Blame
    goes_on: bool = False

    @property
    def accuses_hardware(self) -> bool:
        """Whether the GPU or a link is at fault, and neither the program nor the driver's software."""
        return self.blame in (Blame.DEVICE, Blame.LINK)


_P, _D, _L, _S = Blame.PROGRAM, Blame.DEVICE, Blame.LINK, Blame.DRIVER

XIDS: Mapping[int, Xid] = {
    one.number: one
    for one in (
        Xid(8, "the GPU stopped processing a channel", _P),
        Xid(13, "a kernel did something that the GPU refuses, such as an access out of bounds", _P),
        Xid(31, "a program accessed memory that is not mapped", _P),
        Xid(32, "a corrupted stream of commands reached the GPU", _L),
        Xid(38, "the driver's firmware failed", _S),
        Xid(43, "a program's work was reset after an error of its own", _P),
        Xid(45, "work was cleaned up after an earlier error, or because its program ended", _P),
        Xid(46, "the GPU stopped processing", _D),
        Xid(48, "memory had a double-bit error that ECC cannot correct", _D),
        Xid(61, "an internal micro-controller reported a breakpoint or a warning", _D, goes_on=True),
        Xid(62, "an internal micro-controller halted", _D),
        Xid(63, "a row of memory was marked for remapping after errors", _D, goes_on=True),
        Xid(64, "a bad row of memory could not be remapped", _D),
        Xid(68, "the video decoder failed", _S),
        Xid(69, "a class of the graphics engine failed", _P),
        Xid(74, "NVLink had an error", _L),
        Xid(79, "the GPU has fallen off the PCI bus", _D),
        Xid(92, "ECC corrects single-bit errors at a high rate", _D, goes_on=True),
        Xid(94, "memory had an error that ECC cannot correct, contained to one program", _D),
        Xid(95, "memory had an error that ECC cannot correct and that was not contained", _D),
        Xid(109, "switching between programs took too long", _P),
        Xid(110, "the GPU's security processor failed", _D),
        Xid(119, "the GPU's system processor (GSP) does not answer the driver", _D),
        Xid(120, "the GPU's system processor (GSP) failed", _D),
        Xid(121, "the link between GPU and CPU (C2C) had an error", _L, goes_on=True),
        Xid(122, "the GPU's serial flash cannot be read", _D, goes_on=True),
        Xid(123, "the GPU's serial flash cannot be written", _D, goes_on=True),
        Xid(136, "NVLink could not be trained", _L),
        Xid(137, "a remote GPU faulted in an access over NVLink", _P),
        Xid(140, "memory had an ECC error that was not recovered", _D),
        Xid(143, "the GPU could not be initialised", _D),
        *(Xid(number, "NVLink had an error", _L) for number in range(144, 151)),
        Xid(154, "the GPU says what it needs before it can go on, such as a reset", _D),
        Xid(155, "the software of NVLink reported an error", _L),
        Xid(156, "a resource of the GPU was retired", _D, goes_on=True),
        Xid(157, "a resource of the GPU could not be retired", _D),
    )
}


def explain(number: int) -> Xid:
    """The meaning of a number; one that is not in the table says so."""
    known = XIDS.get(number)
    return known or Xid(number, "an error that this version has no words for", Blame.UNKNOWN)


def tell(number: int) -> str:
    """A number with its meaning, such as: Xid 79 (the GPU has fallen off the PCI bus)."""
    return f"Xid {number} ({explain(number).meaning})"
