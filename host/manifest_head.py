"""Whether what a manifest says of a draft head holds together."""

from __future__ import annotations

from pathlib import Path

from hexgraft.host.manifest import Manifest
from hexgraft.models.errors import BundleError

KINDS = ("eagle", "eagle3")
_HINT = "make it again with `hexgraft export`"


def check_head(manifest: Manifest, where: Path) -> None:
    """That a head reads what the target gives, and names the tokens it proposes; raises BundleError."""
    draft, head = manifest.draft, manifest.draft.head if manifest.draft is not None else None
    if manifest.target.head is not None or (draft is not None and draft.features):
        raise BundleError(f"{where} has a head for its target, or features for its draft", _HINT)
    if draft is None or head is None:
        return
    given = manifest.target.hidden_size
    reads = head.feature_size if head.kind == "eagle3" else draft.hidden
    if head.kind not in KINDS or reads != given or reads < 1 or (head.kind == "eagle" and head.feature_size):
        raise BundleError(
            f"{where}: the draft is a head of the kind {head.kind!r} that reads {reads} numbers of the "
            f"target, which gives {given}",
            _HINT,
        )
    if not 1 <= head.rows <= draft.vocab or (head.tokens is None and head.rows != draft.vocab):
        raise BundleError(f"{where}: the head does not say which {head.rows} tokens it proposes", _HINT)
    if head.tokens is not None:
        entry = manifest.files.get(head.tokens)
        if entry is None or entry.size != 4 * head.rows:
            raise BundleError(f"{where}: the head's tokens in {head.tokens} are not {head.rows}", _HINT)
