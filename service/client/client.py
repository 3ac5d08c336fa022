"""A client of the service: `Client(url)`. It needs only the base install.

    with Client("http://host:8461", token="evf_...") as client:
        job = client.submit("pdb", "/data/raw", message="May release")
        job = client.wait(job.id)
        for chain in client.chains("pdb", max_length=384):
            ...

Transient errors are retried; a job is submitted with a key, so that a retry makes no second one.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from evofeed.base.errors import AccessDenied, InputError, RefConflict, ServiceError
from evofeed.base.files import parse_json
from evofeed.service.views import (
    BrokenChain,
    Job,
    JobOptions,
    Move,
    PolicyRules,
    RefState,
    RowFilters,
    Token,
)
from evofeed.store import Dataset
from evofeed.store.inner import Answer, HttpConnection

_T = TypeVar("_T")
_ERRORS: Final = {401: AccessDenied, 403: AccessDenied, 412: RefConflict}


class Client:
    """The service at `url`; safe to use from many threads.

    Args:
        url: such as `http://host:8461`.
        token: sent with every request; None: the value of `EVOFEED_TOKEN` at that moment.

    Raises:
        AccessDenied: from every method: the token is missing or invalid, or lacks the right.
        ServiceError: from every method: the service refused or does not answer; the URL is invalid.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._token = url.rstrip("/"), token
        try:
            self._http = HttpConnection(self.url, token)
        except ValueError as error:
            raise ServiceError(f"not a service's address: {error}") from None
        self._base = urlsplit(self.url).path.removesuffix("/v1")

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
        """Names of all datasets."""
        return [dataset["name"] for dataset in self._paged("/v1/datasets", "datasets", "after")]

    def register(self, name: str, uri: str, description: str = "") -> None:
        """Register a dataset's location under a name."""
        new = {"name": name, "uri": uri, "description": description}
        self._send("POST", "/v1/datasets", new)

    def chains(
        self, dataset: str, ref: str = "main", *, page: int = 1000, **filters: Unpack[RowFilters]
    ) -> Iterator[dict[str, Any]]:
        """Chains that pass every filter, in index order, all from the snapshot the ref has now."""
        return self._rows(dataset, ref, "chains", page, filters)

    def table(self, dataset: str, ref: str = "main", **filters: Unpack[RowFilters]) -> pa.Table:
        """The same as an Arrow table; `.to_pandas()` converts it to a data frame."""
        return pa.Table.from_pylist(list(self.chains(dataset, ref, **filters)))

    def assemblies(
        self, dataset: str, ref: str = "main", *, page: int = 1000, **filters: Unpack[RowFilters]
    ) -> Iterator[dict[str, Any]]:
        """Complexes that pass every filter, all from the snapshot that the ref has now."""
        return self._rows(dataset, ref, "assemblies", page, filters)

    def _rows(
        self, dataset: str, ref: str, table: str, page: int, filters: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        query = dict(filters)
        if query.get("where") is not None:
            query["where"] = json.dumps(query["where"], separators=(",", ":"))
        if query.get("columns") is not None:
            query["columns"] = ",".join(query["columns"])
        digest = self.ref(dataset, ref).digest
        path = f"/v1/datasets/{_part(dataset)}/snapshots/{digest}/{table}"
        yield from self._paged(path, table, "cursor", **query, limit=page)

    # refs

    def refs(self, dataset: str) -> list[RefState]:
        """All refs of a dataset."""
        said = self._get(f"/v1/datasets/{_part(dataset)}/refs")
        return [_view_of(RefState, ref) for ref in said["refs"]]

    def ref(self, dataset: str, ref: str = "main") -> RefState:
        """Where a ref points."""
        return _view_of(RefState, self._get(_ref(dataset, ref)))

    def move_ref(
        self, dataset: str, ref: str, digest: str, *, expect: str | None, message: str = ""
    ) -> RefState:
        """Point a ref at a snapshot, if it still points at `expect` (None: it is a new one).

        Raises:
            RefConflict: it points elsewhere.
        """
        headers = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        body = {"digest": digest, "message": message}
        return _view_of(RefState, self._send("PUT", _ref(dataset, ref), body, headers))

    def delete_ref(self, dataset: str, ref: str, *, expect: str, message: str = "") -> None:
        """Delete a ref that still points at `expect`; its history stays.

        Raises:
            RefConflict: it points elsewhere.
        """
        path = f"{_ref(dataset, ref)}?{urlencode({'message': message})}"
        self._send("DELETE", path, None, {"If-Match": f'"{expect}"'})

    def history(self, dataset: str, ref: str = "main") -> Iterator[Move]:
        """The moves of a ref, newest first."""
        for move in self._paged(f"{_ref(dataset, ref)}/history", "moves", "before"):
            yield _view_of(Move, move)

    def policy(self, dataset: str, ref: str = "main") -> dict[str, Any]:
        """The conditions for moving a ref: `protected`, `reviewer`, `forbid`, `apart_from`."""
        return dict(self._get(f"{_ref(dataset, ref)}/policy"))

    def set_policy(self, dataset: str, ref: str = "main", **rules: Unpack[PolicyRules]) -> None:
        """Replace the conditions for moving a ref, which need not exist yet."""
        self._send("PUT", f"{_ref(dataset, ref)}/policy", rules)

    # jobs

    def submit(self, dataset: str, input_uri: str, **options: Unpack[JobOptions]) -> Job:
        """Featurize raw files, at a path or URI of the service, into a registered dataset."""
        if unknown := sorted(set(options) - set(JobOptions.__annotations__)):
            raise TypeError(f"a job has no option {unknown[0]!r}")
        new = {"dataset": dataset, "input_uri": input_uri, **options}
        key = {"Idempotency-Key": uuid.uuid4().hex}
        return _view_of(Job, self._send("POST", "/v1/jobs", new, key))

    def jobs(self, limit: int = 100) -> list[Job]:
        """The newest jobs."""
        return [_view_of(Job, job) for job in self._get("/v1/jobs", limit=limit)["jobs"]]

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        return _view_of(Job, self._get(f"/v1/jobs/{_part(job_id)}"))

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop."""
        return _view_of(Job, self._send("POST", f"/v1/jobs/{_part(job_id)}/cancel"))

    def retry(self, job_id: str) -> Job:
        """Run a job that has ended again."""
        return _view_of(Job, self._send("POST", f"/v1/jobs/{_part(job_id)}/retry", once=True))

    def wait(
        self, job_id: str, *, seconds: float = 1.0, seen: Callable[[Job], None] | None = None
    ) -> Job:
        """A job that has succeeded (raises ServiceError: it failed or was cancelled; says why)."""
        while True:
            job = self.job(job_id)
            if seen is not None:
                seen(job)
            if job.state == "succeeded":
                return job
            if job.has_ended:
                end = "was cancelled" if job.state == "cancelled" else "failed"
                why = f": {job.error}" if job.error else ""
                hint = "its chains are in broken(), its words in log()"
                raise ServiceError(f"job {job_id} {end}{why}; {hint}", path=self.url)
            time.sleep(seconds)

    def broken(self, job_id: str) -> list[BrokenChain]:
        """Chains of a job's last run that are in no snapshot, also while it runs."""
        path = f"/v1/jobs/{_part(job_id)}/dead-letters"
        chains: list[BrokenChain] = []
        while True:
            said = self._get(path, offset=len(chains), limit=1000)
            chains += [_view_of(BrokenChain, chain) for chain in said["chains"]]
            if not said["chains"] or len(chains) >= said["total"]:
                return chains

    def log(self, job_id: str) -> str:
        """The log of a job's last run."""
        return self._bytes(f"/v1/jobs/{_part(job_id)}/log").decode(errors="replace")

    # alignments

    def search(self, sequence: str, mode: str = "env", seconds: float = 1.0) -> dict[str, bytes]:
        """Alignments and template hits of a sequence, by file name: `uniref.a3m`, `pdb70.m8`, ...

        Modes are those of ColabFold's protocol: `env`, `all`, `env-nofilter`, ...; it looks again
        after so many seconds.

        Raises:
            InputError: it cannot be searched, or the search failed.
            ServiceError: the service has no databases to search.
        """
        form = urlencode({"q": f">101\n{sequence}\n", "mode": mode}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self._http.request("POST", f"{self._base}/ticket/msa", kind, form)
        while True:
            ticket = self._said((answer if answer.status == 422 else self._checked(answer)).body)
            if ticket["status"] == "COMPLETE":
                break
            if ticket["status"] == "ERROR":
                raise InputError(str(ticket.get("detail", "the search failed")), path=self.url)
            time.sleep(seconds)
            answer = self._http.request("GET", f"{self._base}/ticket/{ticket['id']}")
        files = {}
        packed = self._bytes(f"/result/download/{ticket['id']}")
        try:
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                for name in tar.getnames():
                    file = tar.extractfile(name)
                    # Alignments end with a NUL, to tell one of several sequences from the next.
                    files[name] = file.read().rstrip(b"\0") if file else b""
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise ServiceError(f"no archive of alignments: {error}", path=self.url) from None
        return files

    # tokens

    def tokens(self) -> list[Token]:
        """All tokens, without their secrets."""
        return [_view_of(Token, token) for token in self._paged("/v1/tokens", "tokens", "after")]

    def create_token(
        self,
        label: str,
        scopes: Sequence[str],
        *,
        datasets: Sequence[str] | None = None,
        roots: Sequence[str] | None = None,
        seconds: float | None = None,
    ) -> tuple[str, str]:
        """A new token's id and its text, which is not stored.

        Scopes are `read`, `publish`, `jobs` and `admin`. It is for these datasets (None: all),
        names places below these roots (None: all that are open), expires after so many seconds.
        """
        limits = {"datasets": datasets, "roots": roots, "seconds": seconds}
        new = {"label": label, "scopes": scopes, **limits}
        said = self._send("POST", "/v1/tokens", new, once=True)
        return said["id"], said["token"]

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        self._send("DELETE", f"/v1/tokens/{_part(token_id)}")

    # requests

    def _get(self, path: str, **query: Any) -> Any:
        return self._said(self._bytes(path, **query))

    def _bytes(self, path: str, **query: Any) -> bytes:
        params = {name: _as_text(value) for name, value in query.items() if value is not None}
        where = f"{self._base}{path}?{urlencode(params, doseq=True)}".removesuffix("?")
        return self._checked(self._http.request("GET", where)).body

    def _paged(self, path: str, name: str, after: str, **query: Any) -> Iterator[dict[str, Any]]:
        while True:
            said = self._get(path, **query)
            yield from said[name]
            if (following := said.get("next")) is None:
                return
            if following == query.get(after):
                raise ServiceError("the same page again: is there a cache before it?", path=path)
            query[after] = following

    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> Any:
        """Send a request and decode its answer; with `once`, without retries."""
        all_headers = dict(headers or {}) | ({"Content-Type": "application/json"} if body else {})
        data = json.dumps(body).encode() if body is not None else None
        more: Any = {"attempts": 1} if once else {}
        answer = self._http.request(method, f"{self._base}{path}", all_headers, data, **more)
        text = self._checked(answer).body
        return self._said(text) if text else None

    def _said(self, text: bytes) -> _Said:
        """A decoded answer; anything else, such as a proxy's page, is a ServiceError."""
        try:
            return _Said(parse_json(text).items())
        except (ValueError, AttributeError):
            message = f"it answers {text[:40]!r}, as no service of evofeed: is the URL right?"
            raise ServiceError(message, path=self.url) from None

    def _checked(self, answer: Answer) -> Answer:
        if 200 <= answer.status < 300:
            return answer
        said = answer.problem
        words = [said.get("detail", f"HTTP {answer.status}"), said.get("next")]
        message = "; ".join(str(word) for word in words if word)
        raise _ERRORS.get(answer.status, ServiceError)(message, path=self.url)


class _Said(dict[str, Any]):
    """A decoded answer; a missing member is a ServiceError."""

    def __missing__(self, name: str) -> Any:
        raise ServiceError(f"an answer without {name!r}: is this an evofeed service?")


def _ref(dataset: str, ref: str) -> str:
    return f"/v1/datasets/{_part(dataset)}/refs/{_part(ref)}"


def _view_of(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """An answer as a dataclass, without fields newer than this client."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: value for name, value in values.items() if name in names})
    except (AttributeError, TypeError) as error:
        message = f"an answer that is not a {kind.__name__} ({error}): is this an evofeed service?"
        raise ServiceError(message) from None


def _part(text: str) -> str:
    return quote(text, safe="")


def _as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
