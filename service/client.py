"""A client of the service: `Client(url)`. It needs nothing but the base install.

    with Client("http://host:8461", token="evf_...") as client:
        job = client.submit("pdb", "/data/raw", message="May release")
        job = client.wait(job.id)
        for chain in client.chains("pdb", where={"column": "num_res", "op": "<=", "value": 384}):
            ...

What may pass by itself is tried again; a POST carries an Idempotency-Key, so that it is done once.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from evofeed.errors import AccessDenied, RefConflict, ServiceError
from evofeed.store import Dataset
from evofeed.store.inner import Answer, HttpConnection

_T = TypeVar("_T")
ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
"""States that a job does not leave by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A featurize job as it was when it was asked for.

    Attributes:
        id: its name.
        dataset: what it adds to.
        ref: what it moves; None: nothing.
        message: why, for the ref's history.
        state: queued, running, cancelling, cancelled, succeeded or failed.
        attempts: runs so far.
        progress: `num_chains`, `good`, `broken`, `seconds_left`, ...
        result: `snapshot` and counts, once it has ended.
        error: why it failed.
    """

    id: str
    dataset: str
    ref: str | None
    message: str
    state: str
    attempts: int
    progress: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """True if it does not go on by itself."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenChain:
    """A chain that is in no snapshot, and why."""

    chain_id: str
    type: str
    message: str
    path: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefState:
    """Where a ref points, and since when."""

    name: str
    digest: str
    updated_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    id: str
    label: str
    scopes: list[str]
    datasets: list[str] | None = None
    expires_at: str | None = None
    revoked_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where the ends of jobs are told."""

    id: str
    url: str
    datasets: list[str] | None = None


class Client:
    """The service at `url`; safe to use from many threads.

    Args:
        url: such as `http://host:8461`.
        token: goes with every request; None: what `EVOFEED_TOKEN` holds at that moment.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._token = url.rstrip("/"), token
        self._base = urlsplit(self.url).path.removesuffix("/v1")
        self._http = HttpConnection(self.url, token)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a request opens them again."""
        self._http.close()

    # datasets

    def dataset(self, name: str, snapshot: str = "main") -> Dataset:
        """A dataset, opened for reading chains."""
        url = f"{self.url.removesuffix('/v1')}/v1/datasets/{name}"
        return Dataset.open(url, snapshot, token=self._token)

    def datasets(self) -> list[str]:
        """Names of the datasets there are."""
        return [one["name"] for one in self._paged("/v1/datasets", "datasets", "after")]

    def register(self, name: str, uri: str, description: str = "") -> None:
        """Give a place a name."""
        new = {"name": name, "uri": uri, "description": description}
        self._send("POST", "/v1/datasets", new)

    def refs(self, dataset: str) -> list[RefState]:
        """All refs of a dataset."""
        said = self._get(f"/v1/datasets/{_part(dataset)}/refs")
        return [_made(RefState, one) for one in said["refs"]]

    def ref(self, dataset: str, ref: str = "main") -> RefState:
        """Where a ref points."""
        return _made(RefState, self._get(_ref(dataset, ref)))

    def move_ref(
        self, dataset: str, ref: str, digest: str, *, expect: str | None, message: str = ""
    ) -> RefState:
        """Point a ref at a snapshot, if it still points at `expect` (None: it is a new one).

        Raises:
            RefConflict: it points elsewhere.
        """
        headers = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        body = {"digest": digest, "message": message}
        return _made(RefState, self._send("PUT", _ref(dataset, ref), body, headers))

    def chains(
        self,
        dataset: str,
        ref: str = "main",
        *,
        where: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        page: int = 1000,
    ) -> Iterator[dict[str, Any]]:
        """Chains that pass a filter, in index order, all from the snapshot that the ref has now."""
        digest = self.ref(dataset, ref).digest
        path = f"/v1/datasets/{_part(dataset)}/snapshots/{digest}/chains/search"
        search: dict[str, Any] = {"where": where, "columns": columns, "limit": page}
        while True:
            found = self._send("POST", path, search, repeatable=False)
            yield from found["chains"]
            if found["next"] is None:
                return
            search["cursor"] = found["next"]

    # jobs

    def submit(self, dataset: str, input_uri: str, **options: Any) -> Job:
        """Featurise raw files into a dataset; `options` are the other fields of `POST /v1/jobs`."""
        new = {"dataset": dataset, "input_uri": input_uri, **options}
        return _made(Job, self._send("POST", "/v1/jobs", new))

    def jobs(self, limit: int = 100) -> list[Job]:
        """The newest jobs."""
        said = self._get("/v1/jobs", limit=limit)
        return [_made(Job, one) for one in said["jobs"]]

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        return _made(Job, self._get(f"/v1/jobs/{_part(job_id)}"))

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop."""
        return _made(Job, self._send("POST", f"/v1/jobs/{_part(job_id)}/cancel", None))

    def retry(self, job_id: str) -> Job:
        """Run a job that has ended again."""
        return _made(Job, self._send("POST", f"/v1/jobs/{_part(job_id)}/retry", None))

    def wait(
        self, job_id: str, *, seconds: float = 1.0, seen: Callable[[Job], None] | None = None
    ) -> Job:
        """A job that has ended.

        Args:
            job_id: whose.
            seconds: between two looks.
            seen: is told of each look.
        """
        while True:
            job = self.job(job_id)
            if seen is not None:
                seen(job)
            if job.has_ended:
                return job
            time.sleep(seconds)

    def broken(self, job_id: str) -> list[BrokenChain]:
        """Chains of a job's last run that are in no snapshot, also while it runs."""
        path = f"/v1/jobs/{_part(job_id)}/dead-letters"
        found: list[BrokenChain] = []
        while True:
            said = self._get(path, offset=len(found), limit=1000)
            rows = said["chains"]
            found += [_made(BrokenChain, one) for one in rows]
            if not rows or len(found) >= said["total"]:
                return found

    def log(self, job_id: str) -> str:
        """What a job's last run wrote."""
        path = f"{self._base}/v1/jobs/{_part(job_id)}/log"
        return self._checked(self._http.request("GET", path)).body.decode(errors="replace")

    # tokens

    def tokens(self) -> list[Token]:
        """All tokens, without their secrets."""
        return [_made(Token, one) for one in self._paged("/v1/tokens", "tokens", "after")]

    def create_token(self, label: str, scopes: Sequence[str], **options: Any) -> tuple[str, str]:
        """A new token's id and its text, which cannot be had again."""
        new = {"label": label, "scopes": list(scopes), **options}
        made = self._send("POST", "/v1/tokens", new, repeatable=False)
        return made["id"], made["token"]

    def revoke_token(self, token_id: str) -> None:
        """Make a token worthless."""
        self._send("DELETE", f"/v1/tokens/{_part(token_id)}", None)

    # webhooks

    def webhooks(self) -> list[Webhook]:
        """The webhooks of this token."""
        return [_made(Webhook, one) for one in self._get("/v1/webhooks")["webhooks"]]

    def add_webhook(self, url: str, datasets: Sequence[str] | None = None) -> tuple[str, str]:
        """A new webhook's id and the secret that its messages are signed with."""
        new = {"url": url, "datasets": list(datasets) if datasets is not None else None}
        made = self._send("POST", "/v1/webhooks", new, repeatable=False)
        return made["id"], made["secret"]

    def remove_webhook(self, webhook_id: str) -> None:
        """End a webhook."""
        self._send("DELETE", f"/v1/webhooks/{_part(webhook_id)}", None)

    def deliveries(self, webhook_id: str) -> list[dict[str, Any]]:
        """What came of a webhook's messages, newest first."""
        found: list[dict[str, Any]] = self._get(f"/v1/webhooks/{_part(webhook_id)}/deliveries")[
            "deliveries"
        ]
        return found

    # requests

    def _get(self, path: str, **query: Any) -> Any:
        text = urlencode({k: v for k, v in query.items() if v is not None})
        where = f"{self._base}{path}" + (f"?{text}" if text else "")
        return json.loads(self._checked(self._http.request("GET", where)).body)

    def _paged(self, path: str, name: str, after: str) -> Iterator[dict[str, Any]]:
        cursor = None
        while True:
            said = self._get(path, **{after: cursor})
            yield from said[name]
            cursor = said.get("next")
            if cursor is None:
                return

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None = None,
        *,
        repeatable: bool = True,
    ) -> Any:
        sent = dict(headers or {}) | ({"Content-Type": "application/json"} if body else {})
        once = method == "POST" and not repeatable
        if method == "POST" and repeatable:
            sent["Idempotency-Key"] = uuid.uuid4().hex
        data = json.dumps(body).encode() if body is not None else None
        makes_secret = once and not path.endswith("/search")
        answer = self._http.request(
            method, f"{self._base}{path}", sent, data, **({"attempts": 1} if makes_secret else {})
        )
        text = self._checked(answer).body
        return json.loads(text) if text else None

    def _checked(self, answer: Answer) -> Answer:
        if 200 <= answer.status < 300:
            return answer
        said = answer.problem
        what = f"{said.get('detail', f'HTTP {answer.status}')}"
        if said.get("next"):
            what += f"; {said['next']}"
        if answer.status in (401, 403):
            raise AccessDenied(what, path=self.url)
        if answer.status == 412:
            raise RefConflict(what, path=self.url)
        raise ServiceError(what, path=self.url)


def _made(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """What the service said, without what this client does not know yet."""
    names = {one.name for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


def _part(text: str) -> str:
    return quote(text, safe="")


def _ref(dataset: str, ref: str) -> str:
    return f"/v1/datasets/{_part(dataset)}/refs/{_part(ref)}"
