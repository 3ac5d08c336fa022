"""What FastAPI cannot know of our routes: the form of problems, the bearer token."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field


class WrongField(BaseModel):
    """A field of a request that cannot be."""

    where: str
    what: str


class ProblemView(BaseModel, title="Problem"):
    """RFC 9457 problem details with a stable `code` and the `next` step."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    next: str
    errors: list[WrongField] = Field([], description="left out where it is not about fields")


def refusals(media_type: str, model: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of routes that refuse with a model of this name."""
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{model}"}}}
    return {
        "4XX": {"description": "refused; says why and what to do next", "content": content},
        "5XX": {"description": "failed, as does a store or a database", "content": content},
    }


def describe_api(app: FastAPI) -> None:
    """Give `app.openapi()` the form of problems, and the token where one is asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description,
                routes=app.routes, servers=[{"url": "/", "description": "this service"}],
                separate_input_output_schemas=False,
            )  # fmt: skip
            parts = schema["components"]
            problem = ProblemView.model_json_schema(ref_template="#/components/schemas/{model}")
            parts["schemas"] |= problem.pop("$defs") | {"Problem": problem}
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["summary"] = operation["description"].split("\n")[0].rstrip(".")
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
