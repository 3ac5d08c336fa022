"""Files of sequence clusters: a cluster a line, or mmseqs' table of pairs."""

from __future__ import annotations


def parse_clusters(text: str) -> list[list[str]]:
    """The clusters of a file, each a list of ids without repeats.

    Two kinds are known by their content. mmseqs writes `representative TAB member`, a line
    a member, and each representative is a member of its own cluster. In all other files
    (OpenFold's, RCSB's) a line is a cluster, with spaces between its ids.
    """
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    pairs: dict[str, dict[str, None]] = {}
    for first, *rest in lines:
        pairs.setdefault(first, {}).update(dict.fromkeys(rest))
    if all(len(line) == 2 for line in lines) and all(rep in pairs[rep] for rep in pairs):
        return [list(members) for members in pairs.values()]
    return [list(dict.fromkeys(line)) for line in lines]


def fold_id(chain_id: str) -> str:
    """An id by which chains are compared: whatever its case, a window `1abc_A.v0` as its chain."""
    stem, dot, window = chain_id.rpartition(".v")
    return (stem if dot and window.isdigit() else chain_id).upper()
