"""Links to shards that the nginx in front checks and serves by itself.

A link names the dataset's folder by a word that says nothing, and the shard; it is signed with
when it ends, by a secret that nginx has too. nginx finds the folder by a symlink of that word.
`deploy/nginx.conf` has the location, and docs/decisions/0058-links.md says why it is so.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import logging
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from evofeed.errors import ServiceError

_SHARD: Final = re.compile(r"[0-9a-f]{64}\.arrow")
_log = logging.getLogger(__name__)


class Links:
    """Signs links to the shards of local datasets.

    Args:
        folder: where nginx looks for datasets by their words.
        secret: what both sign with.

    Raises:
        ServiceError: there is no secret, or nothing can be kept in the folder.
    """

    def __init__(self, folder: Path, secret: SecretStr) -> None:
        self._folder, self._secret = folder, secret.get_secret_value()
        if not self._secret:
            raise ServiceError(
                "EVOFEED_LINKS needs EVOFEED_LINK_SECRET, which nginx has too: "
                "deploy/nginx.conf says how to make one"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise _unusable(folder, error) from None

    def sign(self, root: Path, shards: Sequence[str], seconds: int) -> list[str] | None:
        """Paths with queries that lead to shards below `root` for so many seconds.

        None where nginx could not find or would not serve them.
        """
        if not all(_SHARD.fullmatch(shard) for shard in shards):
            return None
        place, word = self._named(root)
        try:
            with contextlib.suppress(FileExistsError):
                (self._folder / word).symlink_to(place)
        except OSError as error:
            _log.warning("no links to shards: %s", _unusable(self._folder, error))
            return None
        expires = int(time.time()) + seconds
        return [self._signed(f"/_links/{word}/{shard}", expires) for shard in shards]

    def end(self, root: Path | str) -> None:
        """Let links to shards below `root` lead nowhere from now on."""
        with contextlib.suppress(OSError):
            (self._folder / self._named(root)[1]).unlink()

    def _named(self, root: Path | str) -> tuple[str, str]:
        place = os.path.realpath(root)
        return place, hmac.digest(self._secret.encode(), os.fsencode(place), "sha256")[:16].hex()

    def _signed(self, path: str, expires: int) -> str:
        # The one hash that nginx' secure_link has. With the secret at both ends neither more text
        # nor colliding texts make a signature.
        text = f"{self._secret} {expires} {path} {self._secret}"
        digest = hashlib.md5(text.encode()).digest()
        word = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        return f"{path}?expires={expires}&signature={word}"


def _unusable(folder: Path, error: OSError) -> ServiceError:
    return ServiceError(
        f"EVOFEED_LINKS: {error.strerror or error}: let the service's user write there, or "
        "choose another folder",
        path=str(folder),
    )
