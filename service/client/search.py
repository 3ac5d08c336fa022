"""Searching alignments by a service, as its client asks: by tickets of ColabFold's protocol."""

from __future__ import annotations

import io
import json
import tarfile
import time
from urllib.parse import urlencode

from evofeed.errors import InputError
from evofeed.service.client.requests import Requests


class SearchRequests(Requests):
    """What `Client` asks about alignments."""

    def search(self, sequence: str, mode: str = "env", seconds: float = 1.0) -> dict[str, bytes]:
        """Alignments and template hits of a sequence, by file name: `uniref.a3m`, `pdb70.m8`, ...

        Args:
            sequence: letters A to Z.
            mode: of ColabFold's protocol: `env`, `all`, `env-nofilter`, ...
            seconds: between two looks.

        Raises:
            InputError: it cannot be searched, or the search failed.
            ServiceError: the service searches nothing.
        """
        form = urlencode({"q": f">101\n{sequence}\n", "mode": mode}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self._http.request("POST", f"{self._base}/ticket/msa", kind, form)
        while True:
            ticket = json.loads(answer.body) if answer.status == 422 else None
            ticket = ticket or json.loads(self._checked(answer).body)
            if ticket["status"] == "COMPLETE":
                break
            if ticket["status"] == "ERROR":
                raise InputError(str(ticket.get("detail", "the search failed")), path=self.url)
            time.sleep(seconds)
            answer = self._http.request("GET", f"{self._base}/ticket/{ticket['id']}")
        path = f"{self._base}/result/download/{ticket['id']}"
        packed = self._checked(self._http.request("GET", path)).body
        found = {}
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            for name in tar.getnames():
                file = tar.extractfile(name)
                # Alignments end with a NUL, to tell one of several sequences from the next.
                found[name] = file.read().rstrip(b"\0") if file else b""
        return found
