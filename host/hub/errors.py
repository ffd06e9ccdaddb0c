"""What can go wrong between us and Qualcomm AI Hub, in words that never hold the token."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator

from hexgraft.host.atomic_file import FULL
from hexgraft.models.errors import CONNECTION_LOST, HexgraftError

AGAIN = "run the same command again later: it takes up its jobs where they are, none is paid for twice"
TOKEN_HINT = "put it into ~/.qai_hub/client.ini: qai-hub configure --api_token TOKEN"
_LONGEST = 300
_HERE = (*FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO)
"""What this machine refuses and not AI Hub."""
_LOST = (
    "ConnectionError",
    "Timeout",
    "ChunkedEncodingError",
    "ProtocolError",
    "HTTPError",
    "HTTPClientError",
    "IncompleteReadError",
    "RetriesExceededError",
)


class HubError(HexgraftError):
    """AI Hub refused something, or answered what nobody expects."""


class HubLogin(HubError):
    """There is no token, or AI Hub does not take it."""


class HubMissing(HubError):
    """AI Hub does not know a job, a model or a data set (any more)."""


class HubBusy(HubError):
    """Too many requests, or a quota that is used up."""


class HubDown(HubError):
    """AI Hub fails by itself, or cannot be reached."""

    exit_code = CONNECTION_LOST


class JobFailed(HubError):
    """A job ended without a result; the message holds the reason AI Hub gave."""


def redact(text: str, token: str) -> str:
    """`text` without the token, and without what addresses carry behind a question mark (signatures)."""
    if token:
        text = text.replace(token, "[token]")
    text = re.sub(r"(https?://[^\s?\"']+)\?[^\s\"']*", r"\1", text)
    return re.sub(r"\?[^\s\"']*(?:signature|x-amz|token)[^\s\"']*", "?[signed]", text, flags=re.IGNORECASE)


def translate(error: BaseException, doing: str, token: str) -> HubError:
    """The error of ours for whatever the client raised while `doing` something ("uploading target_ar8")."""
    status, said = _status(error), redact(_detail(error), token)
    because = f": {said}" if said else ""
    if _is(error, "ClientError"):  # S3's; its credentials live for minutes, and each try gets fresh ones
        return HubDown(f"the storage behind AI Hub refused {doing}{because}", AGAIN)
    if status in (401, 1000):
        return HubLogin(f"AI Hub does not take the token while {doing}", f"get a new one and {TOKEN_HINT}")
    if status == 403:
        return HubLogin(
            f"AI Hub does not allow {doing}{because}",
            "see whether the account may use this device and project, and that the token is its own: "
            "hexgraft hub login-check",
        )
    if status == 404:
        return HubMissing(f"AI Hub does not find what it needs for {doing}{because}", AGAIN)
    if status == 413:
        return HubError(f"AI Hub finds it too large while {doing}{because}", "use a smaller --part-size")
    if status == 426:
        return HubError(f"AI Hub no longer takes this client while {doing}", "pip install --upgrade qai-hub")
    if status == 429:
        return HubBusy(f"AI Hub's quota or rate limit stops {doing}{because}", AGAIN)
    if status is not None and status >= 500:
        return HubDown(f"AI Hub failed with status {status} while {doing}", AGAIN)
    if _is(error, *_LOST):
        return HubDown(f"the connection to AI Hub was lost while {doing}", AGAIN)
    here = next((e for e in _chain(error) if isinstance(e, OSError) and e.errno in _HERE), None)
    if here is not None:
        return HubError(f"this machine refuses {doing}: {here.strerror}", _here_hint(here))
    return HubError(
        f"AI Hub refused {doing}{because}", "pip install --upgrade qai-hub, if it is not the input"
    )


def _here_hint(error: OSError) -> str:
    if error.errno in FULL:
        return "free some space: `df -h` shows where; $TMPDIR names the folder for temporary files"
    return "see `ls -ld` on the folder that is written to, and `ulimit -n`"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from; the client hides causes that say more than it does."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _status(error: BaseException) -> int | None:
    for current in _chain(error):
        status = getattr(current, "status_code", None)
        if isinstance(status, int):
            return status
        # requests' error for retries that came to an end holds the status in words alone
        found = re.search(r"too many (\d{3}) error responses", str(current))
        if found:
            return int(found[1])
        if type(current).__name__ == "RateLimitedError":
            return 429
    return None


def _is(error: BaseException, *names: str) -> bool:
    """Whether it is, or came of, an error of one of these classes; those of four libraries get here."""
    return any(kind.__name__ in names for current in _chain(error) for kind in type(current).__mro__)


def _detail(error: BaseException) -> str:
    """The first useful words of an error: the "detail" of a JSON answer, or its lines without their box."""
    text = str(error)
    try:
        text = str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        text = re.sub(r"[┌┐└┘─|]", " ", text)
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
