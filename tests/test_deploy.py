"""Kubernetes manifests and the Grafana board: valid, careful, and true to the service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from evofeed.service import ServiceSettings
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


def test_the_settings_ask_for_tokens_and_a_secret_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in find("ConfigMap")["data"].items():
        assert name.removeprefix("EVOFEED_").lower() in ServiceSettings.model_fields
        monkeypatch.setenv(name, value)
    settings = ServiceSettings()
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
