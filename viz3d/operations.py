"""What an operation does, by its kind and name: the one place that reads meaning out of the names of segments."""

from __future__ import annotations

import functools
import re

_SYNCHRONISING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_EQUAL = ("allreduce", "allgather", "reducescatter", "broadcast")
_ONE_WAY = ("forward", "backward")
_DIRECTIONS = ("_up", "_down")
_NOT_A_LETTER = re.compile(r"[^a-z]+")


@functools.lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """A name without case, separators and numbers: `c10d::_allgather_base_` and `AllGather` both hold allgather."""
    return _NOT_A_LETTER.sub("", name.lower())


def synchronises(kind: str, segment: str) -> bool:
    """Whether no member of a collective can complete it before every member has joined.

    A broadcast, a reduce or a gather lets some members go early; of a name that tells nothing, nothing is claimed.
    """
    plain = _plain(segment)
    return kind == "collective" and any(word in plain for word in _SYNCHRONISING)


def takes_equal_parts(kind: str, segment: str) -> bool:
    """Whether all members of a collective give as many bytes; in others, such as an all-to-all, each has its own."""
    plain = _plain(segment).removesuffix("coalesced")
    return kind == "collective" and any(word in plain for word in _EQUAL) and not plain.endswith("v")


def sends(kind: str, segment: str) -> bool | None:
    """Whether a point-to-point operation gives data (True) or gets it (False); None where its name does not tell."""
    if kind != "p2p":
        return None
    plain = _plain(segment)
    gives, gets = "send" in plain, "recv" in plain or "receive" in plain
    return None if gives == gets else gives


def is_one_way(group_kind: str) -> bool:
    """Whether a group of two ranks carries messages in one direction only: an edge of a pipeline (`pp_forward`), or a
    process group's messages to higher or to lower ranks (`pp_up`, `world_down`)."""
    return is_of_pass(group_kind) or group_kind.lower().endswith(_DIRECTIONS)


def is_of_pass(group_kind: str) -> bool:
    """Whether a group of two ranks is an edge of a pipeline, of its forward or its backward passes."""
    plain = _plain(group_kind)
    return any(word in plain for word in _ONE_WAY)
