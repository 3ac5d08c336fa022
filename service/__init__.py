"""FastAPI: catalog, manifests, plans and jobs over shard datasets."""

__all__: list[str] = []
