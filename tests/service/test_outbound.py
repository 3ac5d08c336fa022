"""Where a webhook may go, and how it is spoken to there."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import socket
import ssl
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.service.receiver import Receiver

from evofeed.errors import ServiceError
from evofeed.service.webhooks import outbound

PUBLIC = "93.184.215.14"


ALLOWED = ("example.org", "*.hooks.example", "http://10.0.0.5:8080")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://EXAMPLE.org:443/a?b=c",
        "https://a.hooks.example/",
        "http://10.0.0.5:8080/x",
    ],
)
def test_what_is_on_the_list_may_be_called(url: str) -> None:
    assert outbound.check_url(url, ALLOWED).path.startswith("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "https://example.org:8443/",
        "https://example.org@evil.example/",
        "https://user:pass@example.org/",
        "https://example.org.evil.example/",
        "https://evilexample.org/",
        "https://hooks.example/",
        "https://example.org\\@evil.example/",
        "https://example.org/#x",
        "https://example.org/a b",
        "https://example.org/\r\nHost: x",
        "https://[::1/",
        "https://example.org:port/",
        "https://2130706433/",
        "http://10.0.0.5/",
        "http://10.0.0.5:8081/",
        "ftp://example.org/",
        "example.org",
        "",
    ],
)
def test_what_is_not_may_not(url: str) -> None:
    with pytest.raises(ServiceError):
        outbound.check_url(url, ALLOWED)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    ],
)
def test_addresses_of_the_inside_are_not_public(address: str) -> None:
    assert not outbound.is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_addresses_of_the_outside_are(address: str) -> None:
    assert outbound.is_public(address)


def test_a_name_is_resolved_once_and_that_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]  # a name that turns into another after the check
    connected: list[Any] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in answers.pop(0)]

    def connect(address: Any, timeout: float) -> socket.socket:
        connected.append(address)
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    target = outbound.check_url("https://example.org/", ALLOWED)
    with pytest.raises(ServiceError, match="nobody there"):
        outbound.post(target, b"{}", {})
    assert connected == [(PUBLIC, 443)] and len(answers) == 1
    answers[0] = [PUBLIC, "10.0.0.1"]  # one public address does not excuse another
    with pytest.raises(ServiceError, match=r"10\.0\.0\.1, which is not a public"):
        outbound.post(target, b"{}", {})
    assert len(connected) == 1


def test_an_answer_that_trickles_in_is_cut_off() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{server.getsockname()[1]}"

    def trickle() -> None:
        stream, _ = server.accept()
        with stream, contextlib.suppress(OSError):
            while True:
                stream.sendall(b"x")
                time.sleep(0.05)

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(ServiceError, match=r"no answer within 0\.3 s"):
        outbound.post(outbound.check_url(origin, (origin,)), b"{}", {}, seconds=0.3)
    thread.join()
    server.close()


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for `localhost` that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(built.public_bytes(pem))
    kind = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, kind, plain))
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_https_is_spoken_and_its_certificate_checked(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    receiver.server.socket = server.wrap_socket(receiver.server.socket, server_side=True)
    origin = f"https://localhost:{receiver.server.server_port}"
    target = outbound.check_url(f"{origin}/a", (origin,))
    post = partial(outbound.post, body=b"{}", headers={}, seconds=300.0)
    with pytest.raises(ServiceError, match="certificate verify failed"):
        post(target)
    trusting = ssl.create_default_context(cafile=cert)
    monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
    assert post(target) == 204
    other = dataclasses.replace(target, host="127.0.0.1")
    with pytest.raises(ServiceError, match=r"not valid for '127\.0\.0\.1'"):
        post(other)
    assert [body for _, body in receiver.got] == [b"{}"]
