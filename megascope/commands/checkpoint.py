"""``megascope checkpoint``: looks at the trainer's checkpoints, checks them, and exchanges weights."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ..profiler.errors import MegascopeError, UsageError
from .common import Json, print_json, print_report, progress_of

if TYPE_CHECKING:
    from rich.table import Table

    from ..trainer.checkpoints.listing import Listing, Verified

checkpoint = App(
    help="""Look at the trainer's checkpoints, check them, and exchange weights with Hugging Face.

    Example: megascope checkpoint list my-checkpoints
    """,
    help_flags=["--help", "-h"],
    version_flags=[],
)

Folder = Annotated[Path, Parameter(help="Folder of the checkpoints (checkpoint.folder).")]


@checkpoint.command(name="list")
def list_(folder: Folder, /, *, json: Json = False) -> int:
    """List the checkpoints of a folder: step, layout, size, and what each builds upon.

    Only small files are read. Exit code 1 where one of them is not what was written.

    Example: megascope checkpoint list my-checkpoints
    """
    from ..trainer.checkpoints.listing import list_checkpoints  # noqa: PLC0415

    listing = list_checkpoints(folder)
    if json:
        print_json({"schema": 1, **asdict(listing)})
    else:
        print_report(_listing_table(listing))
    return 1 if any(one.problem for one in listing.checkpoints) else 0


@checkpoint.command
def verify(
    folder: Folder,
    /,
    *,
    step: Annotated[int | None, Parameter(help="Step of the checkpoint; all of them by default.")] = None,
    json: Json = False,
) -> int:
    """Read every block of the checkpoints and compare its checksum. Exit code 1 where one is not intact.

    Example: megascope checkpoint verify my-checkpoints --step 1000
    """
    from ..trainer.checkpoints.listing import verify_checkpoints  # noqa: PLC0415

    with progress_of("Reading") as progress:
        verified = verify_checkpoints(folder, step, progress)
    if json:
        print_json({"schema": 1, "folder": folder, "checkpoints": [asdict(one) for one in verified]})
    else:
        print_report(_verified_table(verified))
    return 1 if any(one.problems for one in verified) else 0


@checkpoint.command
def export(
    folder: Folder,
    out: Annotated[Path, Parameter(help="Folder to write, which is not there yet.")],
    /,
    *,
    step: Annotated[int | None, Parameter(help="Step of the checkpoint; the newest intact one by default.")] = None,
    dtype: Annotated[
        str | None, Parameter(help="float32, bfloat16 or float64; the master weights' own, which is exact, by default.")
    ] = None,
    max_file_gb: Annotated[float, Parameter(help="Largest size of one file, in GB.")] = 5.0,
    json: Json = False,
) -> int:
    """Write the weights as a GPT-NeoX model of Hugging Face: safetensors and config.json.

    Example: megascope checkpoint export my-checkpoints my-model --dtype bfloat16
    """
    if not 1e-9 <= max_file_gb < float("inf"):
        raise UsageError(f"--max-file-gb is {max_file_gb}: give a size above 0, such as 5.")
    _need_libraries()
    from ..trainer.checkpoints.exporting import export_checkpoint  # noqa: PLC0415

    done = export_checkpoint(folder, out, step=step, number_format=dtype, max_file_bytes=int(max_file_gb * 1e9))
    if json:
        print_json({"schema": 1, **asdict(done)})
        return 0
    sys.stdout.write(
        f"{done.tensors} tensors of step {done.step} as {done.number_format}, {done.size_bytes:,} bytes: "
        f"{done.folder}/{', '.join(done.files)}\n"
    )
    for sentence in done.unmapped:
        sys.stdout.write(f"not exported: {sentence}\n")
    return 0


@checkpoint.command(name="import")
def import_(
    source: Annotated[Path, Parameter(help="Folder with config.json and safetensors of a GPT-NeoX model.")],
    folder: Annotated[Path, Parameter(help="Folder of checkpoints to make, without checkpoints so far.")],
    /,
    *,
    json: Json = False,
) -> int:
    """Make a checkpoint of step 0 from a model of Hugging Face, for training to start from under any layout.

    Prints the section [model] with which to train it.

    Example: megascope checkpoint import my-model new-checkpoints
    """
    _need_libraries()
    from ..trainer.checkpoints.importing import import_checkpoint  # noqa: PLC0415

    done = import_checkpoint(source, folder)
    if json:
        print_json({"schema": 1, **asdict(done)})
        return 0
    sys.stdout.write(f"{done.parameters} parameters, {done.size_bytes:,} bytes with moments of zero: {done.folder}\n")
    sys.stdout.write("[model]\n")
    for name, value in asdict(done.model).items():
        if value is not None:
            shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else value
            sys.stdout.write(f"{name} = {shown}\n")
    return 0


def _need_libraries() -> None:
    for name in ("torch", "safetensors"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise MegascopeError(
                f"This needs {error.name}, which is not installed: pip install 'megascope[trainer]'."
            ) from None


def _listing_table(listing: Listing) -> Table:
    from rich.table import Table  # noqa: PLC0415

    from ..collectors.storage.quota import size_text  # noqa: PLC0415

    table = Table(title=f"Checkpoints in {listing.folder}", title_justify="left")
    for column in ("Step", "Written, UTC", "Layout", "Ranks", "On disk", "Restores", "Builds upon"):
        table.add_column(column, justify="right" if column in {"Step", "Ranks", "On disk", "Restores"} else "left")
    for one in listing.checkpoints:
        if one.problem is not None:
            table.add_row(str(one.step), f"not intact: {one.problem}", "", "", "", "", "")
            continue
        assert one.size_bytes is not None
        assert one.state_bytes is not None
        table.add_row(
            str(one.step),
            (one.created or "").removesuffix("+00:00"),
            one.layout,
            str(one.ranks),
            size_text(one.size_bytes),
            size_text(one.state_bytes),
            ", ".join(map(str, one.bases or ())),
        )
    for name in listing.others:
        table.add_row("", f"{name}: half written, or set aside", "", "", "", "", "")
    return table


def _verified_table(verified: list[Verified]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    from ..collectors.storage.quota import size_text  # noqa: PLC0415

    table = Table(title="Checkpoints, block by block", title_justify="left")
    table.add_column("Step", justify="right")
    table.add_column("Read", justify="right")
    table.add_column("Result")
    for one in verified:
        table.add_row(str(one.step), size_text(one.size_bytes), "\n".join(one.problems) or "intact")
    return table
