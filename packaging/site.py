"""What the documentation site has besides docs/: pages of the rooms, and what each room exports."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from evofeed.base.lazy import lazy_imports

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("featurize", "store", "loader", "trainer", "kernels", "service", "synth")
OTHERS = {
    "INPUTS.md": ROOT / "featurize" / "INPUTS.md",
    "FORMAT.md": ROOT / "store" / "FORMAT.md",
    "FEATURES.md": ROOT / "src" / "evofeed" / "protein" / "FEATURES.md",
    "CONTRIBUTING.md": ROOT / "CONTRIBUTING.md",
    "README.md": ROOT / "README.md",
}
"""Pages that lie outside docs/."""
_LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def room_page(room: str) -> str:
    """What a room exports, each name from the module that has it."""
    homes = lazy_imports(f"evofeed.{room}")
    names = "\n\n".join(f"::: {homes[name]}.{name}" for name in sorted(homes))
    return f"# evofeed.{room}\n\n{names}\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and list the rooms at the end of the navigation."""
    for old in [file for file in files if file.src_uri == "README.md"]:
        files.remove(old)
    for name, path in OTHERS.items():
        files.append(File.generated(config, name, content=path.read_text()))
    for room in ROOMS:
        files.append(File.generated(config, f"api/{room}.md", content=room_page(room)))
    config.nav.append({"API": [{f"evofeed.{room}": f"api/{room}.md"} for room in ROOMS]})
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links lead to pages of the site; of a file that is none, its text stays."""
    source = OTHERS.get(page.file.src_uri, ROOT / "docs" / page.file.src_uri)
    pages = {path: name for name, path in OTHERS.items()}

    def rewrite(match: re.Match[str]) -> str:
        image, text, link, anchor = match.groups()
        if re.match(r"[a-z]+:", link):
            return match.group()
        target = Path(os.path.normpath(source.parent / link))
        inside = target.is_relative_to(ROOT / "docs") and target.suffix in (".md", ".png")
        if inside and "decisions" not in target.parts and target.name != "README.md":
            name = str(target.relative_to(ROOT / "docs"))
        elif target in pages:
            name = pages[target]
        else:
            return text
        way = os.path.relpath(name, Path(page.file.src_uri).parent)
        return f"{image}[{text}]({way}{anchor or ''})"

    return _LINK.sub(rewrite, markdown)
