"""docker-compose.yml and Dockerfile, as far as they can be judged without an engine.

This shows that what they name exists and that they are careful; not that images
can be pulled or that health checks pass.
"""

from __future__ import annotations

import re
import shlex
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from evofeed.service import ServiceSettings

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NGINX = (ROOT / "deploy" / "nginx.conf").read_text()
DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if re.match("[A-Z]", line)]
OURS = [name for name, service in SERVICES.items() if "build" in service]


def our_command(service: dict[str, Any]) -> list[str]:
    """What follows `evofeed` where a service runs it, by the image's entry point or a shell."""
    if service.get("entrypoint") == ["sh", "-c"]:
        (script,) = service["command"]
        return shlex.split(script.rpartition("exec evofeed ")[2])
    return [] if "entrypoint" in service else list(service["command"])


def one_shot(service: dict[str, Any]) -> bool:
    return bool(service["restart"] == "no")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_local_waits_for_what_can_come_true_and_declares_what_it_uses(
    name: str,
) -> None:
    service = SERVICES[name]
    assert re.search(r":[0-9]+\.[0-9]+", service["image"]), "an image without a version moves"
    inherits = name in OURS and "serve" in our_command(service)
    assert one_shot(service) or inherits or "test" in service["healthcheck"]
    for other, wish in service.get("depends_on", {}).items():
        ends = wish["condition"] == "service_completed_successfully"
        assert ends == one_shot(SERVICES[other]) and "profiles" not in SERVICES[other]
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source.startswith("./") or source in COMPOSE["volumes"]
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    if name in OURS:
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "/tmp" in service["tmpfs"]


def test_no_password_stands_in_the_file_and_every_secret_is_a_file() -> None:
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", variable):
                assert value.startswith(("${", "/run/secrets/")) or variable == "RAY_AUTH_MODE"
        for secret in service.get("secrets", []):
            assert COMPOSE["secrets"][secret]["file"].startswith("./secrets/")
    text = (ROOT / "docker-compose.yml").read_text()
    assert "install -d -m 700 secrets &&" in text, "no other user of the host reads them"
    assert not re.search(r"://[^/\s]+:[^/\s@]+@", text), "a URL with a password"
    assert "rustfsadmin" not in text and "minioadmin" not in text


def test_settings_are_real_ask_for_tokens_hide_the_password_and_believe_nginx_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = dict(item.split("=", 1) for item in shlex.split(dict(LINES)["ENV"]))
    for variable, value in (image | SERVICES["service"]["environment"]).items():
        if variable.startswith("EVOFEED_"):
            assert variable.removeprefix("EVOFEED_").lower() in ServiceSettings.model_fields
            monkeypatch.setenv(variable, value)
    monkeypatch.setenv("EVOFEED_DATABASE_PASSWORD", "p@ss/word\n")
    settings = ServiceSettings()
    assert settings.auth_on and settings.host == "0.0.0.0"
    assert settings.url == "postgresql://evofeed:p%40ss%2Fword@database:5432/evofeed"
    assert settings.trusted_proxies == (SERVICES["nginx"]["networks"]["inside"]["ipv4_address"],)
    assert "p@ss" not in repr(settings)
    assert "evofeed_database_password" in COMPOSE["secrets"]


def test_a_service_that_is_made_anew_is_where_nginx_looks_for_it() -> None:
    """nginx looks a name up once, when it starts."""
    (behind,) = re.findall(r"^\s*server (\w+):8461;$", NGINX, re.M)
    (addresses,) = COMPOSE["networks"]["inside"]["ipam"]["config"]
    for name in (behind, "nginx"):
        own = ip_address(SERVICES[name]["networks"]["inside"]["ipv4_address"])
        assert own in ip_network(addresses["subnet"]), "and no other container is given it"
        assert own not in ip_network(addresses["ip_range"])


def test_ports_of_service_and_checks_agree() -> None:
    port = str(ServiceSettings.model_fields["port"].default)
    assert "ports" not in SERVICES["service"], "what it says to nginx is for nginx only"
    assert SERVICES["nginx"]["ports"] == [f"127.0.0.1:{port}:8443"]
    assert f"server service:{port};" in NGINX
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["nginx"]["volumes"])
    assert mounted["./deploy/nginx-tls.conf"] in NGINX
    way_in = (ROOT / "deploy" / "nginx-tls.conf").read_text()
    for secret in SERVICES["nginx"]["secrets"]:
        assert f"/run/secrets/{secret};" in way_in
    assert dict(LINES)["EXPOSE"] == port and f":{port}/readyz" in dict(LINES)["HEALTHCHECK"]
    head = SERVICES["ray-head"]["command"]
    address = SERVICES["service"]["environment"]["EVOFEED_RAY_ADDRESS"]
    assert f"--port={address.split(':')[1]}" in head
    assert f"--address={address}" in SERVICES["ray-worker"]["command"]
    (script,) = SERVICES["service"]["command"]
    assert f"ray start --block --address={address} --num-cpus=0" in script, "drivers need a node"


def test_the_image_copies_what_is_there_and_runs_as_nobody() -> None:
    assert all(re.match(r"python:3\.\d+-slim-", rest) for k, rest in LINES if k == "FROM")
    copied = {
        source
        for keyword, rest in LINES
        if keyword == "COPY" and not rest.startswith("--from")
        for source in shlex.split(rest)[:-1]
    }
    assert [source for source in copied if not (ROOT / source).exists()] == []
    package = (link for link in (ROOT / "src" / "evofeed").iterdir() if link.is_symlink())
    assert {link.name for link in package} <= copied
    assert dict(LINES)["USER"] == "10001:10001"
    assert dict(LINES)["ENTRYPOINT"] == '["evofeed"]' and dict(LINES)["CMD"] == '["serve"]'
    users = [i for i, (keyword, _) in enumerate(LINES) if keyword == "USER"]
    entry = next(i for i, (keyword, _) in enumerate(LINES) if keyword == "ENTRYPOINT")
    assert users and users[-1] < entry
