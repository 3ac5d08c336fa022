"""The manifest service: datasets, snapshots, chains, plans and jobs over HTTP."""

from evofeed.service.app import create_app
from evofeed.service.server import serving
from evofeed.service.settings import ServiceSettings

__all__ = ["ServiceSettings", "create_app", "serving"]
