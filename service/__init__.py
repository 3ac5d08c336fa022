"""The manifest service: datasets, snapshots, chains, plans and jobs over HTTP.

A question comes in by `server`, passes `requests` (which ask `access`) to its route in `routes`
or its page in `pages`; the answer is in `snapshots`, found by `filters`. A job begins in `routes`
as well: it waits in `jobs`, whose process moves a ref in `refs`. What changes is kept in
`database`; `state` holds what all requests share.
"""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.service.client.client import Client
    from evofeed.service.server import create_app, serving
    from evofeed.service.settings import ServiceSettings

__all__ = ["Client", "ServiceSettings", "create_app", "serving"]

__getattr__ = names_from(__name__)
