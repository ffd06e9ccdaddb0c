"""Checkpoints by their id on the Hugging Face hub, through huggingface_hub: its cache, its token, its offline
switch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hexgraft.models.checkpoint_files import PATTERNS
from hexgraft.models.errors import CheckpointError, mistyped
from hexgraft.models.gguf_file import parts_of

_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/([\w./-]+\.gguf))?(?:@([\w./-]+))?")
_LEFT = ["*/*", "consolidated*"]
"""What lies in folders are other formats of the same weights; Mistral's own layout has them a second time."""


@dataclass(frozen=True, slots=True)
class Download:
    """Where a model lies in huggingface_hub's cache, and what to call it: `origin` names the commit too."""

    path: Path
    name: str
    origin: str


def is_hub_id(path: Path) -> bool:
    """Whether a path that does not exist may be OWNER/NAME, OWNER/NAME/FILE.gguf, or either with @REVISION.

    Below a folder that does exist it is a mistyped path.
    """
    return _ID.fullmatch(str(path)) is not None and not Path(path.parts[0]).exists()


def download(path: Path, *also: str) -> Download:
    """Fetch what a hub id names, unless it is in the cache already; `also` names files that are not fetched
    as a rule. Raises CheckpointError."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise CheckpointError(
            f"no checkpoint at {path}, and huggingface_hub, which could download it, is not installed",
            'pip install "hexgraft[hf]"',
        ) from error
    found = _ID.fullmatch(str(path))
    if found is None:
        raise CheckpointError(f"{path} is not an id of the Hugging Face hub", "example: Qwen/Qwen2.5-0.5B")
    repo, file, revision = found.groups()
    patterns = [*PATTERNS, *also] if file is None else [str(part) for part in parts_of(Path(file))]
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=_LEFT if file is None else None,
            )
        )
    except Exception as error:  # its errors share no base class, and requests' and httpx's come through
        raise _refusal(str(path), error) from error
    origin = f"{repo}@{folder.name}"
    if file is None:
        if not (folder / "config.json").is_file():
            there = f"{repo} on the Hugging Face hub"
            raise adapter_error(folder, there) or CheckpointError(
                f"{there} has no config.json", f"if it holds GGUF files, name one: {repo}/FILE.gguf"
            )
        return Download(folder, repo.partition("/")[2], origin)
    if not (folder / file).is_file():
        raise mistyped(
            CheckpointError(
                f"{repo} on the Hugging Face hub has no file {file}",
                f"see https://huggingface.co/{repo}/tree/main",
            )
        )
    return Download(folder / file, Path(file).stem, f"{origin}/{file}")


def adapter_error(folder: Path, what: str) -> CheckpointError | None:
    """What to say of `what`, a folder without a config.json, if it is an adapter."""
    if not (folder / "adapter_config.json").is_file():
        return None
    return CheckpointError(
        f"{what} is an adapter (LoRA), not a model of its own",
        "merge it into its model first, by peft's merge_and_unload, and save the tokenizer beside it",
    )


def _refusal(path: str, error: Exception) -> CheckpointError:
    kind = type(error).__name__
    reason = str(error).strip().splitlines()[0] if str(error).strip() else kind
    hint = "give a .gguf file or a Hugging Face model folder, or fetch one with `hexgraft fetch`"
    if kind == "GatedRepoError":
        hint = "accept its licence on its page of the hub, then log in: hf auth login"
    elif kind == "RepositoryNotFoundError":
        hint = f"check the name; a private model needs a login (hf auth login); {hint}"
    elif kind in ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError"):
        hint = f"check the network, and HF_HUB_OFFLINE; {hint}"
    refusal = CheckpointError(f"no checkpoint at {path}, and the Hugging Face hub gives none: {reason}", hint)
    return mistyped(refusal) if kind == "RepositoryNotFoundError" else refusal
