"""Submits each job once, takes up those of an earlier run, and waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from hexgraft.host.hub.book import JobBook, JobEntry, UploadEntry, digest_of
from hexgraft.host.hub.errors import AGAIN, HubBusy, HubDown, HubMissing, JobFailed
from hexgraft.host.hub.service import HostedDevice, JobState, Service

T = TypeVar("T")

_QUIET = 60.0
"""Seconds without a word that a user may wait."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A job to be done once. `content` are digests of all that goes into it; equal wishes are one job."""

    kind: str
    title: str
    device: HostedDevice
    options: str
    content: tuple[str, ...]

    @property
    def key(self) -> str:
        return digest_of(self.kind, self.device.name, self.device.os, self.options, *self.content)

    @property
    def name(self) -> str:
        """The job's name, by which it is found again even if the answer to its submission was lost."""
        return f"hexgraft {self.title} {self.key[:12]}"


def _raise(wish: Wish, trouble: JobFailed) -> None:
    raise trouble


class Desk:
    """Jobs and uploads of one work folder. `say` hears what is submitted, taken up and waited for."""

    def __init__(self, service: Service, book: JobBook, say: Callable[[str], None]) -> None:
        self.service, self.book, self._say = service, book, say
        self._fresh: set[str] = set()
        self._gone: dict[str, str] = {}
        """Jobs that are of no use, failed or lost: their ids by the wish's key, "" where there is none."""

    def upload(self, digest: str, title: str, make: Callable[[], Path]) -> str:
        """The id of the model of this sha256, which `make` packs if AI Hub does not have it yet."""
        known = self.book.uploads.get(digest)
        if known is not None and digest not in self._fresh:
            try:
                self.service.facts(known.model_id)
                self._fresh.add(digest)
            except HubMissing:
                self._say(f"{title}: AI Hub has lost model {known.model_id}, uploading it again")
                del self.book.uploads[digest]
                known = None
        if known is not None:
            return known.model_id
        path = make()
        size = path.stat().st_size
        self._say(f"{title}: uploading {size / 1e6:.1f} MB")
        model_id = self.service.upload(path, f"hexgraft {title} {digest[:12]}")
        self.book.uploads[digest] = UploadEntry(title, model_id, size)
        self._fresh.add(digest)
        self.book.save()
        return model_id

    def known(self, wish: Wish) -> JobEntry | None:
        return self.book.jobs.get(wish.key)

    @property
    def used(self) -> list[JobEntry]:
        """The jobs that this run submitted or took up, in the book's order."""
        return [entry for key, entry in self.book.jobs.items() if key in self._fresh]

    def submit(
        self,
        wish: Wish,
        models: Callable[[], Sequence[str]],
        inputs: Mapping[str, NDArray[Any]] | None = None,
    ) -> str:
        """The job's id: taken up from an earlier run, or submitted now. `models` are the ids it works on,
        asked for only when it has to be submitted."""
        entry = self._take_up(wish)
        if entry is not None:
            return entry.job_id
        entry = JobEntry(wish.kind, wish.name, wish.device.name, wish.options, os=wish.device.os)
        self.book.jobs[wish.key] = entry
        ids = models()
        self.book.save()  # before it is sent: whatever happens then, it is looked for by its name
        entry.job_id = self._send(wish, ids, inputs)
        self._enter(wish, entry)
        self._say(f"{wish.title}: submitted {wish.kind} job {entry.job_id}, {entry.url}")
        return entry.job_id

    def stands(self, wish: Wish) -> bool:
        """Whether the job of an earlier run, finished or not, does for a wish; it is taken up then."""
        return self._take_up(wish) is not None

    def look(self, wish: Wish) -> tuple[str, JobState | None]:
        """The id of an earlier run's job, "" where none was submitted, and how it stands; None where AI Hub
        does not know it any more, and "lost" where it does not have what it made."""
        entry = self.known(wish)
        job_id = (entry.job_id or self.service.find_job(wish.name) or "") if entry is not None else ""
        if not job_id:
            return "", None
        try:
            state = self.service.job(job_id)
        except HubMissing:
            return job_id, None
        if state.model_id:
            try:
                self.service.facts(state.model_id)
            except HubMissing:
                return job_id, replace(state, state="lost")
        return job_id, state

    def _take_up(self, wish: Wish) -> JobEntry | None:
        entry = self.known(wish)
        if entry is None or (entry.job_id and wish.key in self._fresh):
            return entry
        if wish.key in self._gone:
            return None
        job_id, state = self.look(wish)
        if state is not None and state.state in ("done", "running"):
            entry.job_id = job_id
            words = "is done" if state.state == "done" else "still runs"
            self._say(f"{wish.title}: {wish.kind} job {job_id} of an earlier run {words}")
            self._enter(wish, entry, state)
            return entry
        self._gone[wish.key] = job_id
        if state is not None and state.state == "failed":
            self._say(f"{wish.title}: job {job_id} of an earlier run failed, submitting it again")
        elif state is not None:
            self._say(f"{wish.title}: AI Hub has lost what job {job_id} made, submitting it again")
        elif job_id:
            self._say(f"{wish.title}: AI Hub does not know job {job_id} any more, submitting it again")
        return None

    def _enter(self, wish: Wish, entry: JobEntry, state: JobState | None = None) -> None:
        state = state or self.service.job(entry.job_id)
        entry.url, entry.model_id = state.url, state.model_id
        self.book.jobs[wish.key] = entry
        self._fresh.add(wish.key)
        self.book.save()

    def _send(self, wish: Wish, models: Sequence[str], inputs: Mapping[str, NDArray[Any]] | None) -> str:
        """Submit; after a fault on the way first look whether the job arrived all the same. The one whose
        place it takes has the same name, and does not count."""
        for wait in (*self.service.pace.retries, None):
            try:
                return self.service.submit(wish.kind, models, wish.device, wish.name, wish.options, inputs)
            except (HubBusy, HubDown):
                if wait is None:
                    raise
                time.sleep(wait)
                found = self.service.find_job(wish.name)
                if found is not None and found != self._gone.get(wish.key):
                    return found
        raise AssertionError("unreachable")

    def wait(
        self, wishes: Sequence[Wish], failed: Callable[[Wish, JobFailed], None] = _raise
    ) -> dict[str, str]:
        """Wait until all these jobs are done; the id of what each made, by the wish's key.

        `failed` hears of each that failed, with AI Hub's reason; by default the first is raised, and the
        others go on, to be taken up by the next run. Raises HubDown when it takes too long.
        """
        waiting = {wish.key: wish for wish in wishes}
        made: dict[str, str] = {}
        start = said = time.monotonic()
        pause, longest = self.service.pace.polls
        while waiting:
            for key, wish in list(waiting.items()):
                entry = self.book.jobs[key]
                state = self.service.job(entry.job_id)
                if state.state == "failed":
                    del waiting[key]
                    reason = state.reason or "AI Hub gives no reason"
                    trouble = JobFailed(
                        f"the {wish.kind} job of {wish.title} failed on {wish.device.name}: {reason}",
                        f"its log is at {state.url}",
                    )
                    failed(wish, trouble)
                if state.state == "done":
                    entry.model_id = made[key] = state.model_id
                    del waiting[key]
                    self.book.save()
            if not waiting:
                break
            now = time.monotonic()
            if now - start > self.service.pace.longest:
                raise HubDown(
                    f"{len(waiting)} jobs at AI Hub still run after {(now - start) / 60:.0f} min", AGAIN
                )
            if now - said > _QUIET:
                said = now
                self._say(f"waiting for {len(waiting)} of {len(wishes)} jobs: {state.code.replace('_', ' ')}")
            time.sleep(pause)
            pause = min(pause * 1.5, longest)
        return made

    def results(
        self,
        jobs: Mapping[Wish, Callable[[], object]],
        fetch: Callable[[str], T],
        failed: Callable[[Wish, JobFailed], None] = _raise,
    ) -> dict[str, T]:
        """Wait until all these jobs are done; what `fetch` gets of each by its id, by the wish's key.

        AI Hub keeps a job for longer than what it gave: `jobs` holds with each what submits it. Those whose
        results are lost are submitted once more, all before the first is waited for. `failed` as in `wait`.
        """
        found: dict[str, T] = {}
        lost: list[Wish] = []
        done = self.wait(list(jobs), failed)
        for wish in jobs:
            if wish.key in done:
                try:
                    found[wish.key] = fetch(self.book.jobs[wish.key].job_id)
                except HubMissing:
                    lost.append(wish)
        for wish in lost:
            self._forget(wish)
        for wish in lost:
            jobs[wish]()
        for key in self.wait(lost, failed):
            found[key] = fetch(self.book.jobs[key].job_id)
        return found

    def _forget(self, wish: Wish) -> None:
        """Have a job whose results AI Hub has lost submitted again."""
        entry = self.book.jobs.pop(wish.key)
        self._fresh.discard(wish.key)
        self._gone[wish.key] = entry.job_id
        self.book.save()
        self._say(f"{wish.title}: AI Hub has lost what job {entry.job_id} gave, submitting it again")
