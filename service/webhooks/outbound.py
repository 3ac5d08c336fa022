"""Requests the service makes to addresses that clients name.

A client must not make the service talk to its own network. A host has to be on
the operator's list; it is resolved once, every address it has must be public,
and the connection goes to the address that was checked, so a name cannot turn
into another one in between. Redirects are not followed, proxies not used.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from evofeed.errors import ServiceError
from evofeed.service.timings import USUAL

_MAX_URL: Final = 2000


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be posted to.

    Attributes:
        scheme: `https`, or `http` where the operator wrote that.
        host: as in the URL, in lower case.
        port: the URL's, or its scheme's.
        path: with the query.
        trusted: the operator named this origin, so its address may be private.
    """

    scheme: str
    host: str
    port: int
    path: str
    trusted: bool


def check_url(url: str, allowed: Sequence[str]) -> Target:
    """Refuse a URL that the operator has not allowed.

    Args:
        url: what a client wants posted to.
        allowed: host names, `*.` patterns and origins, as `ServiceSettings.webhook_hosts`.

    Raises:
        ServiceError: it is malformed or not on the list; says which.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise ServiceError("this is no URL") from None
    odd = len(url) > _MAX_URL or not url.isascii() or any(c <= " " or c == "\x7f" for c in url)
    if odd or parts.scheme not in ("http", "https") or not host:
        raise ServiceError("a webhook needs a plain https URL of at most 2000 ASCII letters")
    if parts.username is not None or parts.password is not None or "#" in url or "\\" in url:
        raise ServiceError("a webhook's URL may hold no user, password, fragment or backslash")
    port = port if port is not None else {"http": 80, "https": 443}[parts.scheme]
    origin = (parts.scheme, host, port)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(origin == _origin(entry) for entry in allowed if "://" in entry):
        return Target(*origin, path, trusted=True)
    named = any(_matches(host, entry.lower()) for entry in allowed if "://" not in entry)
    if parts.scheme != "https" or port != 443 or not named:
        raise ServiceError(f"https://{host} on port 443 is not among EVOFEED_WEBHOOK_HOSTS")
    return Target(*origin, path, trusted=False)


def _origin(entry: str) -> tuple[str, str, int]:
    parts = urlsplit(entry)
    port = parts.port if parts.port is not None else {"http": 80}.get(parts.scheme, 443)
    return parts.scheme, (parts.hostname or "").lower(), port


def _matches(host: str, entry: str) -> bool:
    return host.endswith(entry[1:]) if entry.startswith("*.") else host == entry


def resolve(target: Target) -> str:
    """The address to connect to.

    Raises:
        ServiceError: the name is unknown, or one of its addresses is not public.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ServiceError(f"{target.host} cannot be resolved: {error}") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not target.trusted and (bad := [a for a in addresses if not is_public(a)]):
        raise ServiceError(f"{target.host} is at {bad[0]}, which is not a public address")
    return addresses[0]


def is_public(address: str) -> bool:
    """True for an address of the open Internet, also inside the IPv6 forms that wrap IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in ipaddress.ip_network("64:ff9b::/96"):  # NAT64
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if inner:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def post(
    target: Target,
    body: bytes,
    headers: Mapping[str, str],
    *,
    seconds: float = USUAL.webhook_answer,
) -> int:
    """POST to a checked target; the answer's status. Its body is not read.

    Raises:
        ServiceError: the address is not public, or nobody answers there.
    """
    address = resolve(target)
    connection = http.client.HTTPConnection(target.host, target.port, timeout=seconds)
    began = time.monotonic()
    try:
        stream = socket.create_connection((address, target.port), timeout=seconds)
        if target.scheme == "https":
            context = ssl.create_default_context()
            stream = context.wrap_socket(
                stream, server_hostname=target.host, do_handshake_on_connect=False
            )
        connection.sock = stream
        with _limited(stream, seconds):
            if isinstance(stream, ssl.SSLSocket):
                stream.do_handshake()
            connection.request("POST", target.path, body, {**headers, "Connection": "close"})
            return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        late = time.monotonic() - began >= seconds
        reason = f"no answer within {seconds:g} s" if late else error or type(error).__name__
        raise ServiceError(f"{target.host}: {reason}") from None
    finally:
        connection.close()


@contextmanager
def _limited(stream: socket.socket, seconds: float) -> Iterator[None]:
    """Break the connection off when its time is up.

    A socket's own limit counts from one byte to the next: who sends slowly could hold us forever.
    """

    def cut() -> None:
        with suppress(OSError):  # closed just now
            socket.socket.shutdown(stream, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
