"""``megascope watch``: follow a store and say what changes."""

from __future__ import annotations

import json as json_module
import sys
import time
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from .common import Json, StorePath, print_json


def watch(
    store: StorePath,
    /,
    *,
    interval: Annotated[float, Parameter(help="Seconds from one look to the next.", validator=Number(gt=0))] = 2.0,
    once: Annotated[bool, Parameter(negative="", help="Look once and end.")] = False,
    alarm_command: Annotated[
        str | None, Parameter(help="Shell command that gets each alarm as JSON on stdin; $MEGASCOPE_ALARM_COMMAND.")
    ] = None,
    alarm_webhook: Annotated[
        str | None, Parameter(help="Address that each alarm is POSTed to as JSON; $MEGASCOPE_ALARM_WEBHOOK.")
    ] = None,
    silence: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="No alarms that fit: run=, kind=, host= (patterns), until= (UTC), apart by commas; may be repeated.",
        ),
    ] = None,
    stragglers: Annotated[
        float, Parameter(help="Seconds from one look for stragglers in what runs to the next; 0: none.")
    ] = 600.0,
    keep: Annotated[bool, Parameter(help="Write what this judges itself to the store, as an incident.")] = True,
    json: Json = False,
) -> int:
    """Follow a live store, from any machine that sees it: stalls, verdicts, errors of hardware, ends, a line for each.

    The agents notice a stall and judge it; where they are gone or give no verdict, this does, and keeps it in the store
    as an incident of kind watched. Stragglers among what runs are told of too. With ``--json`` each line is one object;
    with ``--once`` all of them are in one.

    Example: megascope watch /data/store --alarm-command 'mail -s megascope oncall@example.com'
    """
    from ..collectors.alarms.alarms import AlarmSettings, Silence, checked_webhook  # noqa: PLC0415
    from ..collectors.storage.address import store_path  # noqa: PLC0415
    from ..watching import Watch  # noqa: PLC0415

    given = AlarmSettings.from_environment()
    settings = AlarmSettings(
        alarm_command or given.command,
        checked_webhook(alarm_webhook) or given.webhook,
        (*given.silences, *map(Silence.parse, silence or ())),
        given.window_s,
    )
    store = store_path(store)
    watching = Watch(store, settings, keep=keep, stragglers_s=stragglers)
    try:
        while True:
            changes = watching.look()
            if once and json:
                print_json({"store": str(store), "changes": [change.as_json() for change in changes]})
            else:
                for change in changes:
                    _say(json_module.dumps(change.as_json(), allow_nan=False) if json else change.line())
            _report(watching.results())
            if once:
                return 0
            time.sleep(interval)
    finally:
        watching.close()
        _report(watching.results())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _report(results: list[str]) -> None:
    """What came of the alarms goes to stderr: it is not about the job."""
    for result in results:
        sys.stderr.write(f"megascope: {result}\n")
