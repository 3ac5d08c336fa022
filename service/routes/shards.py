"""Shard bytes: whole or by range, as any HTTP cache likes them."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from evofeed.service.names import DatasetName, ShardName
from evofeed.service.ranges import immutable_response
from evofeed.service.routing import ServiceDep, make_router, scope

router = make_router("/v1/datasets/{name}/shards", "shards")


@router.head("/{shard}", include_in_schema=False)
@router.get("/{shard}", response_class=Response)
@scope("read", counted=False)
def get_shard(
    request: Request, service: ServiceDep, name: DatasetName, shard: ShardName
) -> Response:
    """A shard's bytes; Range, If-Range and If-None-Match as RFC 9110 has them."""
    file = service.catalog.shard(name, shard)
    return immutable_response(
        request,
        etag=f'"{file.sha256}"',
        size=file.nbytes,
        read=file.read,
        media_type="application/vnd.apache.arrow.file",
    )
