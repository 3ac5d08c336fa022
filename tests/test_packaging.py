"""Both wheels: everything in them once, and they run in environments of what they require."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
USE = """
import evofeed_kernels as kernels, sys, torch
assert all(getattr(kernels, name) for name in kernels.__all__)
report = kernels.SwapReport()
model = kernels.to_fused(torch.nn.Sequential(torch.nn.LayerNorm(64)), report)
assert len(report.swapped) == 1 and "evofeed" not in sys.modules
x = torch.randn(3, 64)
assert torch.equal(model(x), torch.nn.functional.layer_norm(x, (64,)))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("wheels")
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "packaging" / "wheels.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build_wheels(out)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


def required(asked: Distribution) -> dict[str, Distribution]:
    """What a distribution requires, as it is installed here, and what that requires in turn."""
    found: dict[str, Distribution] = {}
    left = [asked]
    while left:
        for line in left.pop().requires or []:
            needs = Requirement(line)
            if needs.name not in found and (
                not needs.marker or needs.marker.evaluate({"extra": ""})
            ):
                found[needs.name] = distribution(needs.name)
                left.append(found[needs.name])
    return found


def installed(wheel: Path, folder: Path) -> Path:
    """A new environment with a wheel and links to what it requires, and no more; its Python.

    Links, because copies of torch and its libraries take a minute and gigabytes.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", python]  # its own would take seconds to unpack
    command = [*pip, "install", "-q", "--no-compile", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True, capture_output=True)
    (about,) = site.glob("evofeed*.dist-info")
    for one in required(Distribution.at(about)).values():
        assert one.files
        for top in {file.parts[0] for file in one.files} - {"..", "__pycache__", "bin"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(one.locate_file(top))))
    subprocess.run([*pip, "check"], check=True, capture_output=True)
    return python


@pytest.mark.slow
def test_the_wheel_holds_every_room_under_one_name(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["evofeed"]).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"evofeed"}
    for room in ("featurize", "store", "loader", "service", "trainer", "kernels"):
        assert f"evofeed/{room}/__init__.py" in names
    data = "py.typed store/FORMAT.md protein/FEATURES.md protein/residue_atoms.txt "
    data += "synth/components.cif synth/residues.txt featurize/records/corblosum66.txt "
    data += "featurize/records/rulesets/excluded_ligands.txt trainer/presets.yaml "
    data += "trainer/formats/alphafold_names.yaml trainer/losses/stereochemistry.txt"
    assert {f"evofeed/{name}" for name in data.split()} <= set(names)


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = installed(wheels["evofeed"], tmp_path / "venv")
    evofeed = python.parent / "evofeed"
    done = subprocess.run([evofeed, "--help"], check=True, capture_output=True, text=True)
    assert "featurize" in done.stdout
    code = "import evofeed.store, evofeed.protein.features"
    subprocess.run([python, "-W", "error", "-c", code], check=True, cwd=tmp_path)


@pytest.mark.slow
def test_the_wheel_of_kernels_needs_torch_and_triton_alone(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheels["evofeed_kernels"]) as wheel:
        names = wheel.namelist()
        (about,) = (name for name in names if name.endswith("METADATA"))
        requires = [
            line.split(":")[1].split(">")[0].strip()
            for line in wheel.read(about).decode().splitlines()
            if line.startswith("Requires-Dist")
        ]
    assert requires == ["torch", "triton"]
    ours = {
        f"evofeed_kernels/{p.relative_to(ROOT / 'kernels')}"
        for p in (ROOT / "kernels").rglob("*.py")
    }
    assert ours <= set(names)
    python = installed(wheels["evofeed_kernels"], tmp_path / "venv")
    subprocess.run([python, "-c", USE], check=True, cwd=tmp_path)
