"""The routes, one file per noun."""

from evofeed.service.routes.chains import router as chains
from evofeed.service.routes.dashboard import router as dashboard
from evofeed.service.routes.datasets import router as datasets
from evofeed.service.routes.health import router as health
from evofeed.service.routes.jobs import router as jobs
from evofeed.service.routes.plans import router as plans
from evofeed.service.routes.refs import router as refs
from evofeed.service.routes.shards import router as shards
from evofeed.service.routes.snapshots import router as snapshots
from evofeed.service.routes.statistics import router as statistics
from evofeed.service.routes.tokens import router as tokens
from evofeed.service.routes.webhooks import router as webhooks

ROUTERS = (
    health,
    dashboard,
    datasets,
    refs,
    snapshots,
    chains,
    shards,
    plans,
    statistics,
    jobs,
    tokens,
    webhooks,
)
