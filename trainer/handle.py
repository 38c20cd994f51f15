"""An operation under way, from its issue to the moment at which its result may be used; and what its failure means."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import torch

from ..profiler.errors import MegascopeError

if TYPE_CHECKING:
    from .comm import Channel

_LOST = re.compile("connect|peer|time[d -]*out", re.IGNORECASE)


class PeerLostError(MegascopeError):
    """Another rank of the group has gone, or did not come in time: this rank is a victim, not the culprit."""


class Handle:
    """An operation under way. `wait` returns when its result may be used; a second wait does nothing."""

    __slots__ = ("_channel", "_done", "_error", "_kept", "event", "span")

    def __init__(self, channel: Channel, span: Any, kept: object, done: threading.Event | None) -> None:
        self._channel, self.span, self._kept, self._done = channel, span, kept, done
        self.event: Any = None
        self._error: BaseException | None = None

    def is_done(self) -> bool:
        """Whether `wait` would cost nothing."""
        is_through = self._done is None or self._done.is_set()
        return is_through and (self.event is None or bool(self.event.query()))

    def finish(self, error: BaseException | None) -> None:
        """Called by the completion thread: the operation ended, or failed with ``error``."""
        self._error = error
        if self._done is not None:
            self._done.set()

    def wait(self) -> None:
        """Wait: the host blocks for gloo, the current stream for NCCL. The wait is the span's exposed time.

        Raises what the operation failed with; its span then stays in flight, for whoever reads the black box.
        """
        if self.span is None:
            return
        funnel = self._channel.funnel
        if funnel.switches.active:
            funnel.switches.pause()
        funnel.recorder.wait_begin(self.span)
        if self._done is not None:
            self._done.wait()
            if self._error is not None:
                raise explain(self._error, self._channel) from self._error
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)
        funnel.recorder.wait_end(self.span)
        if funnel.switches.active:
            funnel.switches.resume()
        self.span = self._kept = self.event = None


def explain(error: BaseException, channel: Channel) -> BaseException:
    """The error of an operation as one sentence where a peer is lost; any other as it is."""
    text = str(error).partition("\n")[0]
    if not isinstance(error, RuntimeError) or not _LOST.search(text):
        return error
    ranks = ", ".join(str(rank) for rank in channel.ranks)
    return PeerLostError(
        f"The {channel.kind} group of ranks {ranks} broke after {channel.issued} operations ({text}): "
        "look for the rank that failed first."
    )
