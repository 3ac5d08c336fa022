"""The manifest service: datasets, snapshots, chains, plans and jobs over HTTP."""

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.service.app import create_app
    from evofeed.service.client import Client
    from evofeed.service.server import serving
    from evofeed.service.settings import ServiceSettings

__all__ = ["Client", "ServiceSettings", "create_app", "serving"]

__getattr__ = names_from(__name__)
