"""The options of `hexgraft export --target htp`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hexgraft.export.htp.plan import DEFAULT_PART, HtpOptions
from hexgraft.export.htp.precision import PRECISIONS, make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.models.errors import UsageError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DEFAULTS: dict[str, Any] = {
    "socs": (),
    "precision": None,
    "block": None,
    "embed": None,
    "head": None,
    "keep": None,
    "min_agreement": None,
    "calibration": None,
    "parity": None,
    "parity_rows": None,
    "host_widths": None,
    "unshared": False,
    "vtcm": None,
    "part_size": None,
    "force": False,
}


def htp_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is compiled for which chips, and how exactly."""
    for option in reversed(
        (
            click.option(
                "--target",
                "place",
                type=click.Choice(("cpu", "htp")),
                default="cpu",
                show_default=True,
                help="htp adds graphs for the Hexagon NPU; all options below are its own.",
            ),
            click.option(
                "--soc", "socs", multiple=True, help='A chip: SM8650, "Snapdragon 8 Elite", ... Repeatable.'
            ),
            click.option("--precision", type=click.Choice(PRECISIONS), help="Default: fp16."),
            click.option(
                "--block", type=int, help="Weights that share a scale, 0 for a channel. Default: 32 at w4a16."
            ),
            click.option("--embed", help="The embedding's format: fp16 (default) or w8."),
            click.option("--head", help="The head's format: fp16, w8 (default when quantised) or w4."),
            click.option("--keep", help='Layers to keep higher: "layers.0,layers.11.down:fp16".'),
            click.option(
                "--min-agreement",
                type=float,
                help="Look for the layers to keep higher until this is reached, in models. A draft head has "
                "none to choose among; how far it agrees is told.",
            ),
            click.option(
                "--calibration",
                type=_FILE,
                help="Text to calibrate on, in place of the built-in one: its first 1024 tokens.",
            ),
            click.option(
                "--parity", type=_FILE, help="Text of the parity gate, in place of the built-in one."
            ),
            click.option(
                "--parity-rows",
                type=click.IntRange(min=0),
                help="Rows it prefills; 0 for no gate. Default: 128.",
            ),
            click.option(
                "--host-widths",
                help="Widths built for the emulator too, or `none`. Default: all, first chip.",
            ),
            click.option("--unshared", is_flag=True, help="A binary a width instead of one for all."),
            click.option("--vtcm", type=int, help="VTCM in MB. Default: what the chip has."),
            click.option("--part-size", type=int, help="MB of weights in a part at most. Default: 384."),
            click.option("--force", is_flag=True, help="Keep graphs that fail the parity gate, and say so."),
        )
    ):
        command = option(command)
    return command


def take_htp(options: dict[str, Any]) -> HtpOptions | None:
    """The options as a plan, None for a bundle without NPU graphs; raises UsageError where they clash."""
    given = [name for name, default in _DEFAULTS.items() if options[name] != default]
    if options["place"] != "htp":
        if given:
            shown = {"socs": "soc"}.get(given[0], given[0]).replace("_", "-")
            raise UsageError(f"--{shown} is for the NPU", "add --target htp")
        return None
    if not options["socs"]:
        raise UsageError("--target htp needs a chip", "example: --soc SM8650")
    precision = make_precision(
        options["precision"] or "fp16",
        block=options["block"],
        embed=options["embed"],
        head=options["head"],
        keep=options["keep"],
    )
    rows = options["parity_rows"]
    return HtpOptions(
        socs=find_socs(options["socs"]),
        precision=precision,
        shared=not options["unshared"],
        vtcm_mb=options["vtcm"],
        part_bytes=options["part_size"] << 20 if options["part_size"] is not None else DEFAULT_PART,
        host_widths=_host_widths(options["host_widths"]),
        calibration=options["calibration"],
        parity_text=options["parity"],
        parity_rows=128 if rows is None else rows,
        force=options["force"],
        min_agreement=options["min_agreement"],
        block_given=options["block"] is not None,
        rows_given=rows is not None,
    )


def _host_widths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text == "none":
        return ()
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(
            f"--host-widths {text!r} is neither `none` nor numbers", "example: --host-widths 1,16"
        ) from None
