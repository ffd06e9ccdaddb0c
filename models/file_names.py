"""Names of files as other files give them: nobody vouches for those until they are checked."""

from __future__ import annotations

_LONGEST = 255
"""Bytes of one name on ext4, f2fs, APFS and NTFS; asking a file system for more raises an error."""
_LONGEST_PATH = 1024
"""Bytes of names joined by slashes; with the folder before them they stay below Linux's 4096."""


def is_file_name(text: str) -> bool:
    """Whether a text can be the name of one file in a folder, on this machine and on a phone."""
    size = len(text.encode("utf-8", "surrogatepass"))
    return 0 < size <= _LONGEST and text not in (".", "..") and not any(c in text for c in "/\\\0")


def is_inner_path(text: str) -> bool:
    """Whether a text can be the path of a file inside a folder: names joined by single slashes."""
    size = len(text.encode("utf-8", "surrogatepass"))
    return size <= _LONGEST_PATH and all(is_file_name(part) for part in text.split("/"))


def is_utf8(path: str) -> bool:
    """Whether a path can be said in JSON, in the wire protocol and to the runtime: a file system's need not
    be."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def readable_name(text: str) -> str:
    """A file's name as text that JSON and a line can hold: what is no UTF-8, or no character, is replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def clip(text: str) -> str:
    """A name out of a file, short enough for an error."""
    return text if len(text) <= 80 else text[:77] + "..."
