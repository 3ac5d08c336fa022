"""Cluster sizes of the chains of an input, for sampling weights of 1 / size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.cif import pairs_of, read_block
from evofeed.store.inner import parse_clusters

NO_CLUSTER: Final = -1
_ENTITY: Final = re.compile(r"\w+_\d+")
_EXAMPLES: Final = 3


def cluster_sizes(path: str, sources: Sequence[ChainSource]) -> dict[str, int]:
    """Size of the cluster of each chain, -1 for those in none.

    Args:
        path: a cluster a line, or mmseqs' `_cluster.tsv`. The ids are chains in any case
            (`4HHB_A`), or RCSB's polymer entities (`4HHB_1`): a chain's entity is then taken
            from its mmCIF file.

    Raises:
        InputError: no such file, or no chain is in it: lists ids of both.
    """
    groups = read_clusters(path)
    sizes = _sizes(groups, path)
    ids = [name for members in groups for name in members]
    names = {source.chain_id: source.chain_id for source in sources}
    of_entities = all(map(_ENTITY.fullmatch, ids)) and not all(map(_ENTITY.fullmatch, names))
    if of_entities:
        names = _entities(sources)
    size_of = {source.chain_id: NO_CLUSTER for source in sources}
    for chain_id, name in names.items():
        size_of[chain_id] = _size(sizes, name)
    if sources and not names:
        raise InputError(
            f"holds entities as RCSB numbers them ({_examples(ids)}), and no chain here has an "
            "mmCIF file with its entity: give clusters of chain ids such as "
            f"{_examples(size_of)}",
            path=path,
        )
    if sources and all(size == NO_CLUSTER for size in size_of.values()):
        raise InputError(
            f"none of the {len(ids)} ids in it ({_examples(ids)}) is one of the {len(size_of)} "
            f"chains here, such as {_examples(names.values())}: a cluster is a line of chain ids, "
            "or a line for each member, after its representative (mmseqs' _cluster.tsv)",
            path=path,
        )
    return size_of


def read_clusters(path: str) -> list[list[str]]:
    """The members of each cluster of a file.

    Raises:
        InputError: the file has no cluster.
    """
    groups = parse_clusters(read_bytes(file_ref(path)), path)
    if not groups:
        raise InputError("no cluster in it", path=path)
    return groups


def _sizes(groups: Sequence[Sequence[str]], path: str) -> dict[str, int]:
    exact: dict[str, int] = {}
    for members in groups:
        for name in members:
            if name in exact:
                raise InputError(
                    f"{name} is in two clusters: give each cluster a line, or each member one "
                    "after its representative (mmseqs' _cluster.tsv)",
                    path=path,
                )
            exact[name] = len(members)
    return {name.upper(): size for name, size in exact.items()} | exact


def _size(sizes: Mapping[str, int], name: str) -> int:
    """Size by exact name, then with the entry in upper case only: chains `A` and `a` differ."""
    entry, separator, chain = name.rpartition("_")
    for variant in (name, f"{entry.upper()}{separator}{chain}", name.upper()):
        if variant in sizes:
            return sizes[variant]
    return NO_CLUSTER


def _entities(sources: Iterable[ChainSource]) -> dict[str, str]:
    """RCSB's id of the entity, `4HHB_1`, of each chain whose mmCIF file names it."""
    path = ""
    entity_of: dict[str, str] = {}
    names = {}
    for source in sources:
        ref = source.structure_ref()
        if ref is None or not ref.plain_name.endswith((".cif", ".mmcif")):
            continue
        if ref.path != path:  # the chains of an entry follow each other
            path, entity_of = ref.path, _entity_of_chain(read_bytes(ref))
        entity = entity_of.get(source.author_chain)
        if entity is not None:
            names[source.chain_id] = f"{source.entry_id}_{entity}"
    return names


def _entity_of_chain(data: bytes) -> dict[str, str]:
    """Entity by author's chain id, from the polymer table; empty if the file has none."""
    try:
        block = read_block(data)
    except InputError:
        return {}  # a job lists the chain as broken, with the reason
    table = pairs_of(block, "_entity_poly.entity_id", "_entity_poly.pdbx_strand_id")
    return {chain.strip(): entity for entity, strands in table for chain in strands.split(",")}


def _examples(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_EXAMPLES]) + (", …" if len(names) > _EXAMPLES else "")
