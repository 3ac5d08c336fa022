"""The pages: made on the server, whole without a script, which only enlivens them."""

from evofeed.service.pages import chain, dataset, home, job, session

ROUTERS = tuple(each.router for each in (home, session, dataset, chain, job))
