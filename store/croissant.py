"""A snapshot in the words of Croissant 1.0, MLCommons' JSON-LD for data sets."""

from __future__ import annotations

from typing import Any, Final

from evofeed.store.index import INDEX_FIELDS
from evofeed.store.manifest import Manifest

_TYPES: Final = {
    "int": "sc:Integer",
    "uint": "sc:Integer",
    "float": "sc:Float",
    "bool": "sc:Boolean",
}
_ARROW: Final = "application/vnd.apache.arrow.file"
_PRIVATE: Final = ("column_offsets",)


def croissant(
    manifest: Manifest,
    *,
    name: str,
    description: str,
    license_name: str,
    url: str,
) -> dict[str, Any]:
    """JSON-LD of a snapshot: its files with their sums, and the columns of its index."""
    folder = f"snapshots/{manifest.digest}"
    files: list[dict[str, Any]] = [
        _file("manifest", f"{folder}/manifest.json", "application/json", manifest.digest),
        _file("index", f"{folder}/index.arrow", _ARROW, manifest.index_sha256)
        | {"contentSize": f"{manifest.index_nbytes} B"},
    ]
    for number, shard in enumerate(manifest.shards):
        one = _file(f"shard-{number:05d}", f"shards/{shard.name}", _ARROW, shard.sha256)
        files.append(one | {"contentSize": f"{shard.nbytes} B"})
    found: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "dct:conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": description,
        "version": manifest.digest,
        "distribution": files,
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "chains",
                "name": "chains",
                "description": "One row a chain; its arrays are in the shard that it names.",
                "key": {"@id": "chains/chain_id"},
                "field": [
                    _field(column, str(kind))
                    for column, kind in INDEX_FIELDS
                    if column not in _PRIVATE
                ],
            }
        ],
    }
    return found | {k: v for k, v in (("license", license_name), ("url", url)) if v}


def _file(name: str, path: str, kind: str, sha256: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": path.rpartition("/")[2],
        "contentUrl": path,
        "encodingFormat": kind,
        "sha256": sha256,
    }


def _field(column: str, kind: str) -> dict[str, Any]:
    known = (word for start, word in _TYPES.items() if kind.startswith(start))
    return {
        "@type": "cr:Field",
        "@id": f"chains/{column}",
        "name": column,
        "dataType": next(known, "sc:Text"),
        "source": {"fileObject": {"@id": "index"}, "extract": {"column": column}},
    }


_TERMS: Final = (
    "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format "
    "includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated "
    "replace samplingRate separator source subField transform"
)
_CONTEXT: Final = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
