"""A folder that the `kernels` loader of Hugging Face takes, made of this package alone.

    python -m evofeed.kernels.hub OUT

    kernels.get_local_kernel(Path("OUT")).to_fused(model)      # or get_kernel, once uploaded

The loader imports `OUT/build/torch-universal` under a name of its own, beside an installed evofeed or
without one: imports in the copy are relative, and its operators have their own namespace.
"""  # noqa: E501

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path

import evofeed
from evofeed.files import write_atomic

VERSION = 1  # of the interface: names and arguments
BESIDE = ("errors.py", "lazy.py")  # modules of evofeed that kernels import
_IMPORT = re.compile(r"^(\s*)from evofeed\.(?:kernels\b\.?)?([\w.]*) import ", re.MULTILINE)


def build(out: Path) -> Path:
    """Writes the folder, in place of one of the same name; returns the loader's variant in it."""
    here, variant = Path(__file__).parent, out / "build" / "torch-universal"
    files = {
        p.relative_to(here): p for p in sorted(here.rglob("*")) if p.suffix in (".py", ".json")
    }
    del files[Path("hub.py")]
    files |= {Path(name): Path(evofeed.__file__).parent / name for name in BESIDE}
    texts = {to: _relative(path.read_text(), len(to.parts)) for to, path in files.items()}
    digest = hashlib.sha256("".join(map(texts.__getitem__, sorted(texts))).encode()).hexdigest()
    name = f"evofeed_kernels_{digest[:10]}"
    shutil.rmtree(variant, ignore_errors=True)
    for to, text in texts.items():
        (variant / to).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(variant / to, text.replace('NAMESPACE = "evofeed"', f'NAMESPACE = "{name}"'))
    about = {
        "id": name, "name": "evofeed-kernels", "version": VERSION, "license": "Apache-2.0",
        "python-depends": [], "backend": {"type": "cuda"},
    }  # fmt: skip
    write_atomic(variant / "metadata.json", json.dumps(about, indent=1) + "\n")
    return variant


def _relative(text: str, depth: int) -> str:
    """Imports from evofeed as those of a module `depth` levels below the package."""
    return _IMPORT.sub(lambda found: f"{found[1]}from {'.' * depth}{found[2]} import ", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    print(build(parser.parse_args().out))
