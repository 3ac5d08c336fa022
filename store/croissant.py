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
_MEANING: Final = {
    "chain_id": "name of the chain",
    "shard": "file below shards/ that holds it",
    "offset": "where it begins in the shard, bytes",
    "nbytes": "how long it is there, bytes",
    "raw_nbytes": "how long without compression, bytes",
    "checksum": "xxh3-64 of its bytes",
    "num_res": "residues",
    "num_alignments": "rows of its alignment, the query included",
    "num_deletions": "cells of the alignment with insertions before them",
    "num_templates": "templates",
    "resolution": "ångström, 0 if unknown",
    "release_date": "ISO date, empty if unknown",
    "method": "experimental method as the mmCIF file has it",
    "is_distillation": "its structure is a prediction",
    "has_structure": "it has one",
    "num_unknown": "residues that are none of the twenty",
    "max_aa_fraction": "share of its commonest residue",
    "cluster_size": "chains in its sequence cluster, -1 if unknown",
    "cost": "work to read it, in MSA cells",
}


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
        "description": _MEANING[column],
        "dataType": next(known, "sc:Text"),
        "source": {"fileObject": {"@id": "index"}, "extract": {"column": column}},
    }


_CONTEXT: Final = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
