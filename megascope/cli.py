"""The command line: its verbs, and the one place that turns errors into a sentence and an exit code."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence

import cyclopts

from . import __version__
from .profiler.errors import MegascopeError

VERBS = (
    "demo",
    "train",
    "supervise",
    "node",
    "collect",
    "serve",
    "watch",
    "stragglers",
    "hang",
    "timeline",
    "mfu",
    "health",
    "sql",
    "simulate",
    "prune",
    "preflight",
    "ablate",
    "score",
    "import",
    "export",
    "checkpoint",
    "tokenize",
    "batch",
    "doctor",
)

_MODULES = {"import": "import_traces"}
"""Modules of verbs that are no names in Python; the function is called the same."""


def build_app() -> cyclopts.App:
    """The application. The verbs' modules are light: what a verb needs is imported when it runs."""
    app = cyclopts.App(
        name="megascope",
        version=__version__,
        help="Observability and diagnostics for large-scale LLM pretraining.",
        help_flags=["--help", "-h"],
        result_action="return_value",
    )
    for verb in VERBS:
        name = _MODULES.get(verb, verb)
        module = importlib.import_module(f".commands.{name}", __package__)
        app.command(getattr(module, name), name=verb)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 done, 1 the input cannot be analysed, 2 usage."""
    logging.basicConfig(level=logging.WARNING, format="megascope: %(message)s", stream=sys.stderr)
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        result = build_app()(tokens, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return _fail(" ".join(str(error).split()), 2)
    except MegascopeError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        return _fail(_sentence(error), 1)
    return result if isinstance(result, int) else 0


def _sentence(error: OSError) -> str:
    """What a file or an object store refused; raises what neither says where."""
    if error.filename is not None:
        return f"{error.filename} cannot be used ({error.strerror}): check the path and its permissions."
    from .collectors.storage.remote import UNANSWERED, UnreachableError  # noqa: PLC0415

    if not isinstance(error, UNANSWERED):
        raise error
    advice = "try again once it answers" if isinstance(error, UnreachableError) else "check the credentials"
    return f"{error}: {advice}."


def _fail(sentence: str, code: int) -> int:
    sys.stderr.write(f"megascope: {sentence}\n")
    return code
