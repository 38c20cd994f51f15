"""Saving the last good state where a loss or a gradient norm is not finite, before any rank has updated with it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist

from ..profiler.errors import MegascopeError
from .finite import NotFiniteError

log = logging.getLogger(__name__)

_KEY = "megascope/not-finite"


class Rescue:
    """Has every rank save its shard, without a collective: the ranks learn of it from the rendezvous store.

    The rank whose loss is not finite tells the others, and saves; what it saves with hangs up, so that those that wait
    for it look into the store, and save too; and it stays until all have. A step's update needs the gradient norm of
    all ranks, so that nobody can have made it. Where one cannot save in time, nothing is committed, and the checkpoint
    before stays the newest. Those that have only lost a peer stay ``linger_s`` longer: the culprit is to end first.
    """

    def __init__(self, incarnation: str, save: Callable[[int], None], *, linger_s: float = 0.0) -> None:
        self._key, self._save, self._linger_s = f"{_KEY}/{incarnation}", save, linger_s

    def after(self, error: Exception, updates: int) -> None:
        """Save the state of so many updates, if this error, or that of another rank, is a number that is not finite."""
        try:
            store = dist.distributed_c10d._get_default_store()
            if isinstance(error, NotFiniteError) and error.is_applied:
                return  # on a device it is seen a step later: the newest checkpoint is the last good state
            if isinstance(error, NotFiniteError):
                store.set(self._key, str(updates))
            elif not store.check([self._key]) or int(store.get(self._key)) != updates:
                return
            self._save(updates)
            if not isinstance(error, NotFiniteError):
                time.sleep(self._linger_s)  # whose launcher ends all that are left once one has failed
        except (RuntimeError, OSError, MegascopeError, ValueError) as problem:  # the first error is the one that counts
            log.warning("The last good state is not saved (%s).", str(problem).partition("\n")[0])

    @contextlib.contextmanager
    def guard(self, updates: Callable[[], int]) -> Iterator[None]:
        """Within, an error is looked at before it goes on; ``updates`` gives how many have been made by then."""
        try:
            yield
        except Exception as error:
            self.after(error, updates())
            raise
