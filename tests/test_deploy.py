"""Kubernetes manifests, the Grafana board, docker-compose.yml and Dockerfile, without an engine.

This shows that they are valid and careful and that what they name exists; not that images can be
pulled or that health checks pass.
"""

from __future__ import annotations

import json
import re
import shlex
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from evofeed.service import ServiceSettings, server
from evofeed.service.metrics import Metrics

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    one for name in KUSTOMIZATION["resources"]
    for one in yaml.safe_load_all((DEPLOY / name).read_text())
]  # fmt: skip
BOARD = json.loads((DEPLOY / "grafana" / "evofeed.json").read_text())
GRAFANA = {"__rate_interval"}


def find(kind: str, name: str = "evofeed") -> dict[str, Any]:
    (found,) = [o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"] for one in OBJECTS if "template" in one.get("spec", {})]


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_every_object_is_what_kubernetes_takes(thing: dict[str, Any]) -> None:
    kubernetes_validate.validate(thing, "1.30", strict=True)


def test_every_file_is_applied_and_every_name_that_is_used_exists() -> None:
    names = {f"kubernetes/{path.name}" for path in KUBERNETES.glob("*.yaml")}
    assert names == set(KUSTOMIZATION["resources"])
    for service, deployment in (("service", "evofeed"), ("evofeed", "nginx")):
        selected = find("Service", service)["spec"]["selector"]
        labels = find("Deployment", deployment)["spec"]["template"]["metadata"]["labels"]
        assert selected.items() <= labels.items()
    for pod in pods():
        volumes = {one["name"] for one in pod["spec"]["volumes"]}
        volumes |= {"data"}  # the database's claim is in its template
        for box in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            assert {mount["name"] for mount in box["volumeMounts"]} <= volumes
    assert find("PersistentVolumeClaim", "data")
    backend = find("Ingress")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend["name"] == find("Service")["metadata"]["name"]


def test_containers_have_no_more_rights_than_they_need() -> None:
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        for box in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
            rights = box["securityContext"]
            assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in box["resources"]["limits"]


def settings_of(environment: dict[str, str], patch: pytest.MonkeyPatch) -> ServiceSettings:
    """The settings by those variables of an environment that are ours, all of them real."""
    for variable, value in environment.items():
        if variable.startswith("EVOFEED_"):
            assert variable.removeprefix("EVOFEED_").lower() in ServiceSettings.model_fields
            patch.setenv(variable, value)
    return ServiceSettings()


def test_the_settings_ask_for_tokens_and_a_secret_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(find("ConfigMap")["data"], monkeypatch)
    assert settings.auth == "on" and settings.host == "0.0.0.0" and not settings.prints_token
    volumes = find("Deployment")["spec"]["template"]["spec"]["volumes"]
    (secret,) = [volume["secret"] for volume in volumes if "secret" in volume]
    assert [item["path"] for item in secret["items"]] == ["evofeed_database_password"]
    assert "database_password" in ServiceSettings.model_fields


def test_nginx_finds_the_service_and_its_configuration_and_nobody_goes_round_it() -> None:
    (made,) = KUSTOMIZATION["configMapGenerator"]
    text = (DEPLOY / "nginx.conf").read_text()
    service = find("Service", "service")
    assert f"server service:{service['spec']['ports'][0]['port']};" in text
    pod = find("Deployment", "nginx")["spec"]["template"]["spec"]
    (box,) = pod["containers"]
    way_in = (DEPLOY / "nginx-ingress.conf").read_text()
    assert f"listen {box['ports'][0]['containerPort']};" in way_in
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["config"]["configMap"]["name"] == made["name"]
    mounts = {mount.get("subPath"): mount["mountPath"] for mount in box["volumeMounts"]}
    assert set(made["files"]) == set(mounts) - {None}
    assert mounts["nginx.conf"] == "/etc/nginx/nginx.conf"
    assert f"include {mounts['nginx-ingress.conf']};" in text
    policy = find("NetworkPolicy", "service")["spec"]
    (rule,) = policy["ingress"]
    selected = [one["podSelector"]["matchLabels"] for one in rule["from"]]
    labels = find("Deployment", "nginx")["spec"]["template"]["metadata"]["labels"]
    assert selected == [labels], "who says who asks is nginx alone"


def metric_labels() -> dict[str, set[str]]:
    """Every series the service has, with its labels."""
    metrics = Metrics()
    metrics.request("get_ref", "GET", 200, 0.01, 10)
    metrics.request("get_ref", "GET", 403, 0.01, 10)
    metrics.jobs.labels("running").set(1)
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    found: dict[str, set[str]] = {}
    for line in lines:
        name = re.match(r"\w+", line)
        assert name is not None
        found.setdefault(name[0], set()).update(re.findall(r'(\w+)="', line))
    return found


def test_every_metric_and_label_of_the_board_exists() -> None:
    known = metric_labels()
    targets = [target for panel in BOARD["panels"] for target in panel["targets"]]
    assert len(targets) >= 12 and len({panel["id"] for panel in BOARD["panels"]}) == 12
    used = set()
    for expr in (target["expr"] for target in targets):
        series = re.findall(r"(evofeed_\w+)\{([^}]*)\}", expr)
        assert series and expr.count("evofeed_") == len(series), expr
        assert expr.count("(") == expr.count(")"), expr
        for name, matchers in series:
            labels = set(re.findall(r'(\w+)=~?"', matchers)) - {"job"}  # Prometheus' own
            for group in re.findall(r"by \(([^)]*)\)", expr):
                labels |= set(group.replace(" ", "").split(","))
            assert labels <= known[name], (name, labels)
            used.add(name)
    counted = {name for name in known if not name.endswith(("_created", "_sum", "_count"))}
    assert counted <= used, "what the service counts is on the board"
    variables = {item["name"] for item in BOARD["templating"]["list"]}
    named = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"])))
    assert named <= variables | GRAFANA


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
    monkeypatch.setenv("EVOFEED_DATABASE_PASSWORD", "p@ss/word\n")
    settings = settings_of(image | SERVICES["service"]["environment"], monkeypatch)
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


def test_nginx_lets_go_of_an_idle_connection_before_the_service_closes_it() -> None:
    """A POST that crosses the close is not sent again, and answered 502."""
    (seconds,) = re.findall(r"^ *keepalive_timeout (\d+)s;", NGINX, re.M)
    assert int(seconds) < server._config(None).timeout_keep_alive


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
