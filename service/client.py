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
import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from evofeed.service.client_requests import Requests, made, part
from evofeed.service.client_views import (
    BrokenChain,
    Job,
    MadeSnapshot,
    Move,
    RefState,
    Run,
    Token,
    Webhook,
)
from evofeed.store import Dataset
from evofeed.store.inner import shard_key


class Client(Requests):
    """The service at `url`; safe to use from many threads.

    Args:
        url: such as `http://host:8461`.
        token: goes with every request; None: what `EVOFEED_TOKEN` holds at that moment.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        said = self._get(f"/v1/datasets/{part(dataset)}/refs")
        return [made(RefState, one) for one in said["refs"]]

    def ref(self, dataset: str, ref: str = "main") -> RefState:
        """Where a ref points."""
        return made(RefState, self._get(_ref(dataset, ref)))

    def move_ref(
        self, dataset: str, ref: str, digest: str, *, expect: str | None, message: str = ""
    ) -> RefState:
        """Point a ref at a snapshot, if it still points at `expect` (None: it is a new one).

        Raises:
            RefConflict: it points elsewhere.
        """
        headers = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        body = {"digest": digest, "message": message}
        return made(RefState, self._send("PUT", _ref(dataset, ref), body, headers))

    def delete_ref(self, dataset: str, ref: str, *, expect: str, message: str = "") -> None:
        """Delete a ref that still points at `expect`; its history stays.

        Raises:
            RefConflict: it points elsewhere.
        """
        path = f"{_ref(dataset, ref)}?{urlencode({'message': message})}"
        self._send("DELETE", path, None, {"If-Match": f'"{expect}"'})

    def history(self, dataset: str, ref: str = "main") -> Iterator[Move]:
        """Where a ref has been, newest first."""
        for move in self._paged(f"{_ref(dataset, ref)}/history", "moves", "before"):
            yield made(Move, move)

    def policy(self, dataset: str, ref: str = "main") -> dict[str, Any]:
        """What must hold when a ref moves: `protected`, `reviewer`, `forbid`, `apart_from`."""
        found: dict[str, Any] = self._get(f"{_ref(dataset, ref)}/policy")
        return found

    def set_policy(self, dataset: str, ref: str, **policy: Any) -> None:
        """Replace what must hold when a ref moves; what is left out is not asked for."""
        self._send("PUT", f"{_ref(dataset, ref)}/policy", policy)

    # writing

    def upload_shard(self, dataset: str, path: str | os.PathLike[str]) -> str:
        """Send a shard's file; its name, for `commit`."""
        with Path(path).open("rb") as file:
            name = f"{hashlib.file_digest(file, 'sha256').hexdigest()}.arrow"
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
                memoryview(data) as view,
            ):
                self._put(f"/v1/datasets/{part(dataset)}/shards/{name}", view)
        return name

    def missing_shards(self, dataset: str, names: Sequence[str]) -> list[str]:
        """Those of these shards that have to be sent."""
        path = f"/v1/datasets/{part(dataset)}/missing-shards"
        said = self._send("POST", path, {"shards": list(names)}, repeatable=False)
        return list(said["missing"])

    def commit(
        self,
        dataset: str,
        shards: Sequence[str],
        *,
        expect: str | None,
        ref: str | None = "main",
        **options: Any,
    ) -> MadeSnapshot:
        """Make a snapshot of shards that were sent, and move a ref from `expect` to it.

        Args:
            dataset: its name.
            shards: their names.
            expect: digest that the ref is at; None: there is no such ref yet.
            ref: what moves; None: nothing.
            options: the other fields of `POST /v1/datasets/{name}/snapshots`: `mode`, `message`,
                `config`, ...

        Raises:
            RefConflict: the ref is elsewhere; nothing has changed.
        """
        headers = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        body = {"shards": list(shards), "ref": ref, **options}
        path = f"/v1/datasets/{part(dataset)}/snapshots"
        return made(MadeSnapshot, self._send("POST", path, body, headers, patient=True))

    def merge(
        self,
        dataset: str,
        other: str,
        *,
        expect: str,
        snapshot: str = "main",
        ref: str = "main",
        message: str = "",
    ) -> MadeSnapshot:
        """Add the chains of `snapshot` of dataset `other` to those that a ref at `expect` has.

        Raises:
            RefConflict: the ref is elsewhere; nothing has changed.
            ServiceError: chains are in both and differ.
        """
        body = {"dataset": other, "snapshot": snapshot, "ref": ref, "message": message}
        headers = {"If-Match": f'"{expect}"'}
        path = f"/v1/datasets/{part(dataset)}/merge"
        return made(MadeSnapshot, self._send("POST", path, body, headers, patient=True))

    def push(
        self,
        source: str | os.PathLike[str],
        dataset: str,
        *,
        snapshot: str = "main",
        ref: str | None = "main",
        message: str = "",
        seen: Callable[[int, int], None] | None = None,
    ) -> MadeSnapshot:
        """Send a snapshot as it is, with the shards that the service lacks, and move a ref to it.

        What was sent stays there for a while: sent again, it goes on.

        Args:
            source: the dataset it is in: a folder, bucket or service.
            dataset: name of a registered one.
            snapshot: ref or digest.
            ref: what shall point at it; None: nothing.
            message: why, for the ref's history.
            seen: called for each shard that has arrived: how many so far, of how many.

        Raises:
            RefConflict: somebody moved the ref meanwhile.
        """
        there = {one.name: one.digest for one in self.refs(dataset)}
        where = f"/v1/datasets/{part(dataset)}"
        with Dataset.open(source, snapshot) as ours:
            lacking = self.missing_shards(dataset, [one.name for one in ours.manifest.shards])
            for count, name in enumerate(lacking):
                self._put(f"{where}/shards/{name}", ours.storage.read(shard_key(name)))
                if seen is not None:
                    seen(count + 1, len(lacking))
            names = ("index.arrow", *ours.manifest.more_files)
            files = [ours.storage.read(f"snapshots/{ours.digest}/{name}") for name in names]
            data = b"".join([ours.manifest.to_bytes(), b"\n", *files])
            said = json.loads(self._put(f"{where}/snapshots/{ours.digest}", data))
        sent = made(MadeSnapshot, said)
        if ref is None:
            return sent
        if there.get(ref) != sent.digest:
            self.move_ref(dataset, ref, sent.digest, expect=there.get(ref), message=message)
        return dataclasses.replace(sent, ref=ref)

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
        path = f"/v1/datasets/{part(dataset)}/snapshots/{digest}/chains/search"
        search: dict[str, Any] = {"where": where, "columns": columns, "limit": page}
        while True:
            found = self._send("POST", path, search, repeatable=False)
            yield from found["chains"]
            if found["next"] is None:
                return
            search["cursor"] = found["next"]

    def assemblies(
        self,
        dataset: str,
        ref: str = "main",
        *,
        where: Mapping[str, Any] | None = None,
        page: int = 1000,
        **filters: Any,
    ) -> Iterator[dict[str, Any]]:
        """Complexes that pass a filter, all from the snapshot that the ref has now.

        Args:
            dataset: its name.
            ref: whose snapshot.
            where: filter on the table's columns.
            page: rows asked for at once.
            filters: such as `stoichiometry="A2B2"`, `min_interface=20`, `max_chains=4`.
        """
        digest = self.ref(dataset, ref).digest
        path = f"/v1/datasets/{part(dataset)}/snapshots/{digest}/assemblies"
        query: dict[str, Any] = {**filters, "limit": page}
        if where is not None:
            query["where"] = json.dumps(where)
        while True:
            found = self._get(path, **query)
            yield from found["assemblies"]
            if found["next"] is None:
                return
            query["cursor"] = found["next"]

    # jobs

    def submit(self, dataset: str, input_uri: str, **options: Any) -> Job:
        """Featurise raw files into a dataset; `options` are the other fields of `POST /v1/jobs`."""
        new = {"dataset": dataset, "input_uri": input_uri, **options}
        return made(Job, self._send("POST", "/v1/jobs", new))

    def jobs(self, limit: int = 100) -> list[Job]:
        """The newest jobs."""
        said = self._get("/v1/jobs", limit=limit)
        return [made(Job, one) for one in said["jobs"]]

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        return made(Job, self._get(f"/v1/jobs/{part(job_id)}"))

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop."""
        return made(Job, self._send("POST", f"/v1/jobs/{part(job_id)}/cancel", None))

    def retry(self, job_id: str) -> Job:
        """Run a job that has ended again."""
        return made(Job, self._send("POST", f"/v1/jobs/{part(job_id)}/retry", None))

    def wait(
        self, job_id: str, *, seconds: float = 1.0, seen: Callable[[Job], None] | None = None
    ) -> Job:
        """A job that has ended.

        Args:
            job_id: whose.
            seconds: between two looks.
            seen: called after each look.
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
        path = f"/v1/jobs/{part(job_id)}/dead-letters"
        found: list[BrokenChain] = []
        while True:
            said = self._get(path, offset=len(found), limit=1000)
            rows = said["chains"]
            found += [made(BrokenChain, one) for one in rows]
            if not rows or len(found) >= said["total"]:
                return found

    def log(self, job_id: str) -> str:
        """What a job's last run wrote."""
        path = f"{self._base}/v1/jobs/{part(job_id)}/log"
        return self._checked(self._http.request("GET", path)).body.decode(errors="replace")

    # training runs

    def runs(self) -> list[Run]:
        """Training runs of the datasets that this token may see, newest first."""
        return [made(Run, one) for one in self._get("/v1/runs")["runs"]]

    def register_run(self, name: str, dataset: str, folder: str, description: str = "") -> Run:
        """Register a run's folder, as the service sees it."""
        new = {"name": name, "dataset": dataset, "folder": folder, "description": description}
        return made(Run, self._send("POST", "/v1/runs", new))

    def run_curves(self, name: str) -> dict[str, tuple[list[int], list[float | None]]]:
        """Every number of a run by name: steps and values."""
        found = self._get(f"/v1/runs/{part(name)}/curves")["curves"]
        return {name: (one["steps"], one["values"]) for name, one in found.items()}

    def forget_run(self, name: str) -> None:
        """Forget a run; its folder stays."""
        self._send("DELETE", f"/v1/runs/{part(name)}", None)

    # tokens

    def tokens(self) -> list[Token]:
        """All tokens, without their secrets."""
        return [made(Token, one) for one in self._paged("/v1/tokens", "tokens", "after")]

    def create_token(self, label: str, scopes: Sequence[str], **options: Any) -> tuple[str, str]:
        """A new token's id and its text, which cannot be had again."""
        new = {"label": label, "scopes": list(scopes), **options}
        said = self._send("POST", "/v1/tokens", new, repeatable=False)
        return said["id"], said["token"]

    def revoke_token(self, token_id: str) -> None:
        """Make a token worthless."""
        self._send("DELETE", f"/v1/tokens/{part(token_id)}", None)

    # webhooks

    def webhooks(self) -> list[Webhook]:
        """The webhooks of this token."""
        return [made(Webhook, one) for one in self._get("/v1/webhooks")["webhooks"]]

    def add_webhook(
        self,
        url: str,
        datasets: Sequence[str] | None = None,
        events: Sequence[str] | None = None,
    ) -> tuple[str, str]:
        """A new webhook's id and the secret that its messages are signed with."""
        given = {"datasets": datasets, "events": events}
        new = {"url": url} | {n: list(v) for n, v in given.items() if v is not None}
        said = self._send("POST", "/v1/webhooks", new, repeatable=False)
        return said["id"], said["secret"]

    def ping_webhook(self, webhook_id: str) -> str:
        """Send a webhook a `ping`; the message's id."""
        return str(self._send("POST", f"/v1/webhooks/{part(webhook_id)}/ping", None)["id"])

    def redeliver(self, webhook_id: str, message_id: str) -> None:
        """Send a message again, under the id that it has."""
        path = f"/v1/webhooks/{part(webhook_id)}/deliveries/{part(message_id)}/redeliver"
        self._send("POST", path, None)

    def remove_webhook(self, webhook_id: str) -> None:
        """End a webhook."""
        self._send("DELETE", f"/v1/webhooks/{part(webhook_id)}", None)

    def deliveries(self, webhook_id: str) -> list[dict[str, Any]]:
        """What came of a webhook's messages, newest first."""
        found: list[dict[str, Any]] = self._get(f"/v1/webhooks/{part(webhook_id)}/deliveries")[
            "deliveries"
        ]
        return found


def _ref(dataset: str, ref: str) -> str:
    return f"/v1/datasets/{part(dataset)}/refs/{part(ref)}"
