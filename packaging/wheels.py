"""Builds both wheels: `evofeed`, and `evofeed-kernels`, which needs PyTorch and Triton alone.

    python packaging/wheels.py dist/

The second is the room `kernels` with the two modules of `base` that it imports, under the name
`evofeed_kernels`, so that both can be installed side by side.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = ("errors", "lazy")
"""Modules of `evofeed.base` that the kernels import."""
NAME = "evofeed_kernels"
RENAMED = (
    (re.compile(r"\bevofeed\.kernels\b"), NAME),
    (re.compile(r"\bevofeed\.base\b"), f"{NAME}.base"),
    (re.compile(r'(["`])evofeed(?=::|")'), rf"\1{NAME}"),  # operators and ranges of PyTorch
)


def kernels_source(tree: Path, out: Path) -> None:
    """Write the source of `evofeed-kernels`, taken from a tree of the project."""
    package = out / NAME
    shutil.copytree(tree / "kernels", package, ignore=shutil.ignore_patterns("notes"))
    (package / "base").mkdir()
    for name in BASE:
        shutil.copy(tree / "src" / "evofeed" / "base" / f"{name}.py", package / "base")
    (package / "base" / "__init__.py").write_text('"""Errors, and names that load when used."""\n')
    for path in package.rglob("*.py"):
        text = path.read_text()
        for pattern, name in RENAMED:
            text = pattern.sub(name, text)
        path.write_text(text)
    (package / "py.typed").touch()
    shutil.copy(tree / "src" / "evofeed" / "__init__.py", package / "version.py")
    for path in (*(tree / "packaging" / "kernels").iterdir(), tree / "LICENSE"):
        shutil.copy(path, out)


def build_wheels(out: Path) -> None:
    """Build both into `out`, from a copy of what git has: the tree stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        whole, kernels = Path(folder, "evofeed"), Path(folder, "kernels")
        copy = ["git", "checkout-index", "--all", f"--prefix={whole}/"]
        subprocess.run(copy, cwd=ROOT, check=True)
        kernels_source(whole, kernels)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
        for source in (whole, kernels):
            subprocess.run([*build, str(source)], check=True, capture_output=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    build_wheels(folder)
    print(*sorted(folder.glob("*.whl")), sep="\n")
