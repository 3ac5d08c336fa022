"""The routes, one file per noun."""

from evofeed.service.routes.chains import router as chains
from evofeed.service.routes.datasets import router as datasets
from evofeed.service.routes.health import router as health
from evofeed.service.routes.refs import router as refs
from evofeed.service.routes.shards import router as shards
from evofeed.service.routes.snapshots import router as snapshots

ROUTERS = (health, datasets, refs, snapshots, chains, shards)
