"""The pages: made on the server, whole without a script, which only enlivens them."""

from evofeed.service.pages import dataset, entry, home

ROUTERS = tuple(page.router for page in (home, dataset, entry))
