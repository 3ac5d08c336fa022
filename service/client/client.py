"""A client of the service: `Client(url)`. It needs nothing but the base install.

    with Client("http://host:8461", token="evf_...") as client:
        job = client.submit("pdb", "/data/raw", message="May release")
        job = client.wait(job.id)
        for chain in client.chains("pdb", where={"column": "num_res", "op": "<=", "value": 384}):
            ...

What may pass by itself is tried again; a POST carries an Idempotency-Key, so that it is done once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evofeed.service.client.requests import made, part
from evofeed.service.client.search import SearchRequests
from evofeed.service.client.snapshots import SnapshotRequests
from evofeed.service.client.views import (
    BrokenChain,
    Job,
    Run,
    Token,
    Webhook,
)
from evofeed.store import Dataset


class Client(SnapshotRequests, SearchRequests):
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
        """Featurize raw files into a dataset; `options` are the other fields of `POST /v1/jobs`."""
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
