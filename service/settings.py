"""Settings of the service, from `EVOFEED_*` variables, secret files or keywords."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from evofeed.base.errors import ServiceError
from evofeed.service.database.database import parse_url
from evofeed.service.names import NAME_PATTERN

_SECRETS = Path("/run/secrets")  # where Docker and Podman mount secrets
_MISSPELT = 0.85  # similarity of a name with a wrong letter or two
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def default_home() -> Path:
    """Default folder of the embedded database: `$XDG_DATA_HOME/evofeed`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "evofeed"


class ServiceSettings(BaseSettings):
    """Settings of the service; every field is also the variable `EVOFEED_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix="EVOFEED_",
        frozen=True,
        extra="ignore",
        secrets_dir=_SECRETS if _SECRETS.is_dir() else None,
    )

    home: Path = Field(default_factory=default_home)
    """Folder of the embedded database and of job logs."""
    database_url: SecretStr = SecretStr("")
    """PostgreSQL or SQLite URL; empty for SQLite in `home`."""
    database_password: SecretStr = SecretStr("")
    """Password put into `database_url`; as a file: /run/secrets/evofeed_database_password."""
    datasets: dict[str, str] = {}
    """Datasets to register at start, name to URI (JSON in the environment)."""
    dataset_roots: tuple[str, ...] = ()
    """URI prefixes that may be registered over HTTP; empty: any when auth is off, none when on."""
    input_roots: tuple[str, ...] = ()
    """URI prefixes that jobs may read raw files from; empty as above."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8461, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that answer on that port; one of them runs jobs and tickets."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names clients may use; empty: any, or only loopback names when auth is off."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies in front, such as `10.0.0.5` or `10.0.0.0/8`: what they say
    in X-Forwarded-For and X-Forwarded-Proto is trusted, and no others."""
    auth: Literal["auto", "on", "read", "off"] = "auto"
    """Who needs a token: `on`, all callers; `auto`, too, and prints one at start on a loopback
    address; `read`, writers only; `off`, none: every user of this machine is admin."""
    max_body: int = Field(default=1 << 20, ge=1024)
    """Bytes a request body may have."""
    request_seconds: float = Field(default=30.0, gt=0)
    """Seconds a request may take before it is answered with 503; streams may go on."""
    heavy_requests: int = Field(default=16, ge=1)
    """Filters, statistics, plans and diffs that one caller may have waiting or running, in each
    worker."""
    grace_seconds: float = Field(default=600.0, ge=0)
    """Seconds for which shards, indexes and manifests go on being served to known tokens while
    the database is away."""
    max_jobs: int = Field(default=1, ge=0)
    """Featurize jobs that may run at once; 0 refuses all."""
    ray_address: str = ""
    """`host:port` of the Ray cluster jobs run on; empty: processes of this machine."""
    max_queued_jobs: int = Field(default=100, ge=1)
    """Jobs that may wait."""
    msa_databases: dict[str, str] = {}
    """The databases of `/ticket/msa` (JSON): `uniref`; `env`, the environmental one; `env_pair`,
    that of rows to pair; `pdb`, templates, a database of mmseqs. Each a path as `evofeed search
    --db` takes it. Empty: nothing."""
    msa_templates: str = ""
    """Prefix of the database of hh-suite (`PREFIX_a3m.ffdata`) with the chains of `pdb`."""
    msa_mmcif: Path | None = None
    """Folder with the structures of these chains as mmCIF, flat or as the wwPDB's mirror."""
    msa_cache: Path | None = None
    """Results of searches, shared with `evofeed search --cache`; `msa` in `home` if not set."""
    msa_workers: int = Field(default=0, ge=0)
    """Searches at once; 0 is one per core."""
    msa_max_waiting: int = Field(default=50, ge=1)
    """Tickets of one principal that may wait."""
    job_databases: dict[str, str] = {}
    """The databases of jobs with a recipe (JSON): paths by role, as docs/search.md names them."""
    job_workers: int = Field(default=0, ge=0)
    """Workers a job may have; 0: one per core."""
    job_memory: int = Field(default=16 << 30, ge=1 << 20)
    """Bytes a job may allow one chain."""
    job_deadline: float = Field(default=3600.0, gt=0)
    """Seconds a job may allow one chain."""
    job_caps: dict[str, float] = {}
    """Input caps that a job may go up to (JSON), where they are not those of `InputCaps`."""
    keep_days: float = Field(default=90.0, ge=0)
    """Days until ended jobs and their logs are deleted; 0: never."""
    audit_days: float = Field(default=0.0, ge=0)
    """Days until lines of the audit are deleted; 0: never."""
    accel: str = ""
    """Path of nginx' internal location that is an alias of `/`, such as `/_shards`: shards of local
    datasets are then sent by the nginx in front, by sendfile. Empty: the service sends them."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "WARNING"
    """The log level of `evofeed serve` on standard error; INFO adds a JSON line per request."""
    url_seconds: int = Field(default=900, ge=60, le=86400)
    """Seconds a presigned URL is good for; never longer than the token that asked for it."""

    @field_validator("datasets")
    @classmethod
    def _names_are_names(cls, datasets: dict[str, str]) -> dict[str, str]:
        for name in datasets:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(
                    f"{name!r} cannot name a dataset: letters, digits, dot, dash and underscore"
                )
        return {
            name: uri if "://" in uri else str(Path(uri).absolute())
            for name, uri in datasets.items()
        }

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_addresses(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            ipaddress.ip_network(proxy)
        return proxies

    @field_validator("msa_databases")
    @classmethod
    def _databases_have_a_use(cls, databases: dict[str, str]) -> dict[str, str]:
        if databases and not {"uniref"} <= set(databases) <= {"uniref", "env", "env_pair", "pdb"}:
            raise ValueError("want `uniref`, and `env`, `env_pair` and `pdb` if there are such")
        for path in (Path(text.partition(",")[0]) for text in databases.values()):
            if not path.exists() and not any(path.parent.glob(f"{path.name}[._]*")):
                raise ValueError(f"there is no database {path}")
        return databases

    @model_validator(mode="after")
    def _templates_are_there(self) -> ServiceSettings:
        if "pdb" not in self.msa_databases and not self.msa_templates:
            return self
        if not (self.msa_templates and self.msa_mmcif):
            raise ValueError(
                "templates need three settings: `pdb` in msa_databases, msa_templates and msa_mmcif"
            )
        for path in (Path(f"{self.msa_templates}_a3m.ffindex"), self.msa_mmcif):
            if not path.exists():
                raise ValueError(f"templates are searched, but {path} does not exist")
        return self

    @property
    def url(self) -> str:
        """Database URL with its password, the embedded SQLite file if none is set."""
        url = self.database_url.get_secret_value()
        if not url:
            return f"sqlite:///{self.home / 'service.sqlite3'}"
        password = self.database_password.get_secret_value().strip()
        if not password:
            return url
        return parse_url(url).set(password=password).render_as_string(hide_password=False)

    @property
    def searched(self) -> Path:
        """Folder of cached search results: `msa_cache`, or its default."""
        return self.msa_cache or self.home / "msa"

    @property
    def auth_on(self) -> bool:
        """True if changing something needs a token."""
        return self.auth != "off"

    @property
    def reading_is_free(self) -> bool:
        """True if reading needs no token."""
        return self.auth in ("off", "read")

    @property
    def prints_token(self) -> bool:
        """True if a start makes a token and prints it."""
        return self.auth == "auto" and self.host in _LOOPBACK

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host headers accepted; empty for any.

        Without tokens a web page that rebinds its DNS name to 127.0.0.1 could read
        us, so only loopback names are answered then.
        """
        if self.allowed_hosts or not self.reading_is_free:
            return self.allowed_hosts
        return ("127.0.0.1", "localhost", "[::1]", self.host)


def load_settings(**changes: Any) -> ServiceSettings:
    """Settings from the environment with some fields given.

    Raises:
        ServiceError: a value is refused, or a variable is all but the name of a setting;
            names the variable, never a secret's value.
    """
    _refuse_misspelt(os.environ)
    try:
        return ServiceSettings(**changes)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ServiceError(f"setting {field} (EVOFEED_{field.upper()}): {message}") from None
    except SettingsError as error:  # its message names only the field
        field = str(error).partition('"')[2].partition('"')[0]
        raise ServiceError(
            f"setting {field} (EVOFEED_{field.upper()}) is not JSON: "
            'a list is written ["/data/raw"], a mapping {"pdb": "/data/pdb"}'
        ) from None


def _refuse_misspelt(names: Iterable[str]) -> None:
    """Raise for a misspelt setting: EVOFEED_ATUH=on must not be ignored."""
    settings = [f"EVOFEED_{field.upper()}" for field in ServiceSettings.model_fields]
    for name in names:
        near = difflib.get_close_matches(name, settings, 1, _MISSPELT)
        if name.startswith("EVOFEED_") and name not in settings and near:
            raise ServiceError(f"no setting {name}; did you mean {near[0]}?")
