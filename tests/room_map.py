"""`docs/rooms.md`: the folders and files of each room in layers, read from its imports.

python -m tests.room_map > docs/rooms.md
"""

from __future__ import annotations

import grimp

ROOMS = (
    "featurize", "store", "loader", "trainer", "kernels", "service", "synth", "viz", "protein",
    "base",
)  # fmt: skip
_HEAD = """# Rooms, drawn from their imports

Each line of a room imports from lines below it, never from one above or beside it. Folders end in
`/`. In brackets: folders and files at the room's first level, and how many pairs of them import
one another. Imports of types alone are left out. `python -m tests.room_map > docs/rooms.md` writes
this page; a test compares the two.
"""


def layers(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Names by how far they stand above what imports nothing of the room; raises on a circle."""
    done: dict[str, int] = {}
    while left := arrows.keys() - done.keys():
        ready = [name for name in left if arrows[name] <= done.keys()]
        if not ready:
            raise ValueError(f"a circle among {', '.join(sorted(left))}")
        height = 1 + max(done.values(), default=-1)
        done |= dict.fromkeys(ready, height)
    return [
        sorted(name for name, height in done.items() if height == at)
        for at in reversed(range(max(done.values(), default=-1) + 1))
    ]


def arrows_of(graph: grimp.ImportGraph, room: str) -> dict[str, set[str]]:
    """Which of its siblings each child of a room imports."""
    children = sorted(graph.find_children(room))
    owner = {
        module: child for child in children for module in {child, *graph.find_descendants(child)}
    }
    arrows: dict[str, set[str]] = {child: set() for child in children}
    for module, child in owner.items():
        targets = {owner.get(other) for other in graph.find_modules_directly_imported_by(module)}
        arrows[child] |= {target for target in targets if target and target != child}
    return arrows


def draw() -> str:
    """The page."""
    graph = grimp.build_graph("evofeed", exclude_type_checking_imports=True, cache_dir=None)
    text = [_HEAD]
    for room in ROOMS:
        arrows = arrows_of(graph, f"evofeed.{room}")
        total = sum(map(len, arrows.values()))
        text.append(f"\n## {room} ({len(arrows)}, {total})\n")
        for names in layers(arrows):
            short = [n.rsplit(".", 1)[1] + "/" * bool(graph.find_children(n)) for n in names]
            text.append(f"- {', '.join(f'`{name}`' for name in short)}")
        text.append("")
    return "\n".join(text).rstrip() + "\n"


if __name__ == "__main__":
    print(draw(), end="")
