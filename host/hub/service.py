"""AI Hub behind its client: errors in our words, bounded retries, and the token nowhere."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.hub.errors import (
    TOKEN_HINT,
    HubBusy,
    HubDown,
    HubLogin,
    HubMissing,
    redact,
    translate,
)
from hexgraft.models.errors import UsageError

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]
Note = Callable[[str], None]

_LOGGERS = ("api_utils", "public_rest_api", "s3_transfer", "LogRetry", "backoff", "urllib3.connectionpool")
_PAGE = 50
_PAGES = 4
"""How far back a job is looked for by its name."""


def _unheard(message: str) -> None:
    """For those who do not listen."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between looks at a job, growing from the first to the last; before each further try of a call
    that failed by no fault of ours, beyond the half minute the client itself takes; and what is waited for a
    job at most."""

    polls: tuple[float, float] = (2.0, 20.0)
    retries: tuple[float, ...] = (10.0, 60.0)
    longest: float = 6 * 3600.0


PACE = Pace()


@dataclass(frozen=True, slots=True)
class HostedDevice:
    """A device as AI Hub lists it; `attributes` are such as "chipset:qualcomm-snapdragon-8gen3"."""

    name: str
    os: str
    attributes: tuple[str, ...] = ()

    def values(self, key: str) -> list[str]:
        """What it says under `key`: ["v75"] for "hexagon"."""
        return [text.split(":", 1)[1] for text in self.attributes if text.startswith(f"{key}:")]

    @property
    def system(self) -> str:
        """Its system and the version: "Android 14"."""
        return f"{(self.values('os') or [''])[0].capitalize()} {self.os}".strip()

    @property
    def title(self) -> str:
        """Its name and system, as messages tell it."""
        return f"{self.name} ({self.system})"

    @property
    def soc_model(self) -> int | None:
        """QAIRT's number of its chip."""
        numbers = [int(value) for value in self.values("soc-model") if value.isdigit()]
        return numbers[0] if numbers else None


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as AI Hub describes it; `shape` is empty where it does not."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What AI Hub says of a model it made: graph name -> its inputs and outputs, and properties by name."""

    graphs: dict[str, tuple[list[Tensor], list[Tensor]]]
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobState:
    """`state` is "running", "done" or "failed"; `reason` why it failed; `model_id` what it makes."""

    state: str
    code: str
    reason: str
    model_id: str
    url: str


class Service:
    """One account at AI Hub. Made by `open_service`, or with a client's configuration; `note` is told before
    each wait for another try."""

    def __init__(self, config: Any, pace: Pace | None = None, note: Note = _unheard) -> None:
        import qai_hub

        config.verbose = False
        self._client = qai_hub.Client(config=config)
        self._token = str(config.api_token)
        self._jobs: dict[str, Any] = {}
        self.address = str(config.api_url)
        self.pace = pace or PACE
        self._note = note
        _guard_logs(self._token)

    # ------------------------------------------------------------- the account

    def user(self) -> str:
        """Who the token belongs to."""
        from qai_hub import public_rest_api

        user = self.call("looking up the account", lambda: public_rest_api.get_auth_user(self._client.config))
        return str(user.email) or " ".join(filter(None, (user.first_name, user.last_name)))

    def devices(self) -> list[HostedDevice]:
        found = self.call("listing devices", self._client.get_devices)
        return [HostedDevice(device.name, device.os, tuple(device.attributes)) for device in found]

    def releases(self) -> list[tuple[str, bool]]:
        """The QAIRT releases on offer ("2.51"), and whether each is the one taken without --qairt."""
        found = self.call("listing QAIRT releases", self._client.get_frameworks)
        wanted = [framework for framework in found if framework.name.upper() in ("QAIRT", "QNN")]
        return [(framework.api_version, "default" in framework.api_tags) for framework in wanted]

    # ------------------------------------------------------------- models

    def upload(self, path: Path, name: str) -> str:
        """Upload a packed model or a context binary; its id."""
        model = self.call(f"uploading {name}", lambda: self._client.upload_model(str(path), name=name))
        return str(model.model_id)

    def facts(self, model_id: str) -> ModelFacts:
        model = self.call(f"looking up model {model_id}", lambda: self._client.get_model(model_id))
        inputs, outputs = model.input_spec or {}, model.output_spec or {}
        graphs = {name or "": (_tensors(inputs[name]), _tensors(outputs.get(name, []))) for name in inputs}
        return ModelFacts(graphs, {key.name: value for key, value in (model.metadata or {}).items()})

    def download(self, model_id: str, path: Path, name: str) -> None:
        """The file of a model to `path`, which appears only when it is whole."""
        scratch_folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-")
        with scratch_folder as scratch, temporary_files_in(Path(scratch)):

            def fetch() -> str:
                # A folder for each try: where one failed, the client leaves an empty file of the name.
                place = tempfile.mkdtemp(dir=scratch)
                return str(self._client.get_model(model_id).download(place))

            file = Path(self.call(f"downloading {name}", fetch))
            if not file.is_file() or not file.stat().st_size:
                raise HubDown(f"the download of {name} brought nothing", "run the same command again")
            shutil.move(file, path)

    # ------------------------------------------------------------- jobs

    def submit(
        self,
        kind: str,
        models: Sequence[str],
        device: HostedDevice,
        name: str,
        options: str,
        inputs: Mapping[str, NDArray[Any]] | None = None,
    ) -> str:
        """Submit a job ("compile", "link", "profile" or "inference") once; its id."""
        import qai_hub

        where = qai_hub.Device(device.name, device.os, [])
        data = {key: [array] for key, array in inputs.items()} if inputs is not None else None

        def work() -> Any:
            known = [self._client.get_model(model) for model in models]
            if kind == "compile":
                return self._client.submit_compile_job(
                    known[0], where, name=name, options=options, retry=False
                )
            if kind == "link":
                return self._client.submit_link_job(list(known), where, name=name, options=options)
            return self._client.submit_inference_job(
                known[0],
                where,
                inputs=data,
                name=name,
                options=options,
                retry=False,
                profile=kind == "profile",
            )

        return str(self.call(f"submitting {name}", work, retried=False).job_id)

    def job(self, job_id: str) -> JobState:
        def look() -> tuple[Any, Any, str]:
            job = self._jobs.get(job_id)
            if job is None or job.get_status().finished:  # only now does it know what it made
                job = self._jobs[job_id] = self._client.get_job(job_id)
            status = job.get_status()
            makes = status.success and hasattr(job, "get_target_model")
            return status, job.get_target_model() if makes else None, job.url

        status, made, url = self.call(f"looking at job {job_id}", look)
        state = "done" if status.success else "failed" if status.failure else "running"
        reason = redact(" ".join((status.message or "").split()), self._token)
        return JobState(state, status.code.lower(), reason, made.model_id if made else "", url)

    def find_job(self, name: str) -> str | None:
        """The newest job of this name, whatever its state."""
        for page in range(_PAGES):
            look = partial(self._client.get_job_summaries, offset=page * _PAGE, limit=_PAGE)
            found = self.call(f"looking for the job {name}", look)
            for summary in found:
                if summary.name == name:
                    return str(summary.job_id)
            if len(found) < _PAGE:
                break
        return None

    def outputs(self, job_id: str) -> Arrays:
        """What an inference job computed, by output name."""
        found = self.call(
            f"downloading the outputs of {job_id}",
            lambda: self._client.get_job(job_id).download_output_data(),
        )
        if not found:
            raise HubMissing(f"the inference job {job_id} has no outputs", "run the same command again")
        return {name: np.asarray(arrays[0]) for name, arrays in found.items()}

    def profile(self, job_id: str) -> dict[str, Any]:
        """What a profile job measured: times in microseconds, memory in bytes."""
        found = self.call(
            f"downloading the profile {job_id}", lambda: self._client.get_job(job_id).download_profile()
        )
        if not found:
            raise HubMissing(f"the profile job {job_id} has no figures", "run the same command again")
        summary: dict[str, Any] = found["execution_summary"]
        return summary

    # ------------------------------------------------------------- one call

    def call(self, doing: str, work: Callable[[], T], retried: bool = True) -> T:
        """What `work` returns. Calls that may be repeated are, where the fault is AI Hub's or the network's.

        The client prints as it works; nobody hears it. Its own retries, some half minute, come first.
        """
        for wait in (*self.pace.retries, None) if retried else (None,):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    return work()
            except Exception as error:
                trouble = translate(error, doing, self._token)
            # Outside the handler, so that no traceback can show the client's error behind ours.
            if wait is None or not isinstance(trouble, HubBusy | HubDown):
                raise trouble
            self._note(f"{trouble.message}; trying again in {wait:g} s")
            time.sleep(wait)
        raise AssertionError("unreachable")


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Have the client's temporary files, which are as large as what it moves, in `folder`: the system's own
    may be small, and keeps what a killed process leaves."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _tensors(specs: Sequence[Any]) -> list[Tensor]:
    return [Tensor(spec.name, spec.dtype, tuple(spec.shape or ())) for spec in specs]


def require_client(what: str) -> None:
    """Raise UsageError if the client is not installed; `what` is the user's wish that needs it."""
    if importlib.util.find_spec("qai_hub") is None:
        raise UsageError(f"{what} needs qai-hub, which is not installed", "pip install 'hexgraft[hub]'")


def open_service(pace: Pace | None = None, note: Note = _unheard) -> Service:
    """The account of the client's own configuration (~/.qai_hub/client.ini, or QAIHUB_CLIENT_INI).

    Raises UsageError without the client, HubLogin without a token.
    """
    require_client("AI Hub")
    from qai_hub import api_utils

    path = api_utils.get_config_path()
    if Path(path).is_dir():
        hint = "let QAIHUB_CLIENT_INI name the client's file, or unset it"
        raise HubLogin(f"there is no AI Hub token: {path} is a folder", hint)
    if not Path(path).is_file():
        raise HubLogin(f"there is no AI Hub token: {path} does not exist", TOKEN_HINT)
    trouble = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config = api_utils.load_default_api_config()
    except Exception:  # configparser's errors quote lines of the file, the token's among them
        trouble = HubLogin(f"{path} is not a configuration of AI Hub's client", TOKEN_HINT)
    if trouble is not None:
        raise trouble
    if not (config.api_token or "").strip():
        raise HubLogin(f"there is no AI Hub token in {path}", TOKEN_HINT)
    return Service(config, pace, note)


class _Redactor(logging.Filter):
    """Takes the token, and signatures in addresses, out of what the client logs."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = redact(record.getMessage(), self._token)
        record.args = ()
        return True


def _guard_logs(token: str) -> None:
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for former in [one for one in logger.filters if isinstance(one, _Redactor)]:
            logger.removeFilter(former)
        logger.addFilter(_Redactor(token))
        if not any(isinstance(one, logging.NullHandler) for one in logger.handlers):
            logger.addHandler(logging.NullHandler())  # heard where somebody listens, not on a bare stderr
