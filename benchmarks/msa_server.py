"""Fifty of ColabFold's and Boltz's own clients at once against the MSA server: right, and in turns?

    python benchmarks/msa_server.py --peers PYTHON [--site FOLDER] [--out RESULT.json]

`PYTHON` has `colabfold` and `boltz`; each client is a thread of it that calls their `run_mmseqs2`,
unchanged, for two sequences: single chains with templates, or pairs. Five principals, each with a
token and a process of its own: one has thirty clients, the others five, of which one principal's
are Boltz's. The server searches mmseqs databases as ColabFold does, lets a principal have
twenty tickets waiting; a client beyond that gets 429 and
Retry-After, and comes again as its own code has it. An answer is right if it is to the letter what
the same sequences have when they are searched without the server, pairs joined, and its templates
are there with their structures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_CLIENTS = """
import json, logging, sys, time
from concurrent.futures import ThreadPoolExecutor
logging.disable(logging.CRITICAL)
given = json.loads(sys.argv[1])
sys.path += given["site"]
import requests
limits = []
def watched(real):
    def call(*args, **kwargs):
        answer = real(*args, **kwargs)
        if answer.status_code == 429:
            limits.append([answer.headers.get("Retry-After"), answer.json().get("status")])
        return answer
    return call
requests.post, requests.get = watched(requests.post), watched(requests.get)
if given["boltz"]:
    from boltz.data.msa.mmseqs2 import run_mmseqs2
else:
    from colabfold.colabfold import run_mmseqs2

def one(asked):
    pairing = asked["pairing"]
    own = {"msa_server_username": "me", "msa_server_password": given["token"]}
    url, more = given["url"], own
    if not given["boltz"]:
        url = url.replace("//", "//me:" + given["token"] + "@")
        more = {"use_templates": not pairing, "user_agent": "bench"}
    began = time.time()
    try:
        out = run_mmseqs2(asked["sequences"], asked["prefix"], use_env=True, use_pairing=pairing,
                          host_url=url, **more)
    except Exception as error:
        return {**asked, "error": repr(error)}
    a3m, templates = out if isinstance(out, tuple) else (out, [])
    return {**asked, "a3m": a3m, "templates": templates, "began": began, "ended": time.time()}

with ThreadPoolExecutor(len(given["asked"])) as pool:
    answers = list(pool.map(one, given["asked"]))
print(json.dumps({"answers": answers, "limits": limits}))
"""
_FAMILIES = 12
_CIF = "data_{name}\n_entry.id {name}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="Python with colabfold and boltz.")
    parser.add_argument("--site", default="", help="further folder of packages for that Python")
    parser.add_argument("--clients", type=int, nargs="*", default=[30, 5, 5, 5, 5])
    parser.add_argument("--port", type=int, default=8479)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/msa_server.json"))
    args = parser.parse_args()
    from tests.featurize.search.family import family

    families = [family(seed, 8, 70) for seed in range(_FAMILIES)]
    with tempfile.TemporaryDirectory(prefix="evofeed-msa-") as name:
        folder = Path(name)
        settings = _environment(folder, families)
        server = _serve(folder, settings, args.port)
        try:
            began = time.time()
            results = _ask(args, folder, families)
            seconds = time.time() - began
            answers = [answer for one in results for answer in one["answers"]]
        finally:
            server.terminate()
            server.wait(60)
        alone = _alone(folder, settings, answers)
        right = [_is_right(a, alone) for a in answers]
    limits = [limit for one in results for limit in one["limits"]]
    found = {
        "command": "python benchmarks/msa_server.py --peers PYTHON",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "clients": len(answers),
        "right": sum(right),
        "with_templates": sum(1 for a in answers if any(a.get("templates", []))),
        "wrong": [
            {k: str(v)[-400:] for k, v in a.items()}
            for a, ok in zip(answers, right, strict=True)
            if not ok
        ][:3],
        "told_429": len(limits),
        "with_retry_after": sum(1 for after, status in limits if after and status == "RATELIMIT"),
        "seconds": round(seconds, 1),
        "principals": [
            _spread(one["answers"], n == len(results) - 1) for n, one in enumerate(results)
        ],
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1)[:3000])


def _spread(answers: list[dict[str, Any]], is_boltz: bool) -> dict[str, Any]:
    took = [a["ended"] - a["began"] for a in answers if "ended" in a]
    return {
        "clients": len(answers),
        "client": "boltz" if is_boltz else "colabfold",
        "seconds_a_client": {
            "median": round(statistics.median(took), 1),
            "max": round(max(took), 1),
        }
        if took
        else {},
    }


def _environment(folder: Path, families: list[list[str]]) -> dict[str, str]:
    """Databases made of the families, and the service's settings that name them."""
    from tests.featurize.search.family import cluster_db, hh_db, mmseqs_db

    rows = [
        (f"UniRef100_F{f}N{n} Thing n=1 Tax=Some TaxID={n + 1} RepID=X", s)
        for f, kin in enumerate(families)
        for n, s in enumerate(kin[1:])
    ]
    chains = [(f"1a{f:02d}_A", kin[2]) for f, kin in enumerate(families)]
    (folder / "mmcif").mkdir()
    for name, _ in chains:
        (folder / "mmcif" / f"{name[:4]}.cif").write_text(_CIF.format(name=name[:4]))
    databases = {
        "uniref": cluster_db(folder / "uniref", rows),
        "env": cluster_db(folder / "env", rows[::2]),
        "pdb": mmseqs_db(folder / "pdb", chains),
    }
    return {
        "EVOFEED_HOME": str(folder / "home"),
        "EVOFEED_MSA_DATABASES": json.dumps(databases),
        "EVOFEED_MSA_TEMPLATES": hh_db(folder / "pdb70", {n: [(n, s)] for n, s in chains}),
        "EVOFEED_MSA_MMCIF": str(folder / "mmcif"),
        "EVOFEED_MSA_WORKERS": "2",
        "EVOFEED_MSA_MAX_WAITING": "20",
        "EVOFEED_AUTH": "on",
    }


def _serve(folder: Path, settings: dict[str, str], port: int) -> subprocess.Popen[bytes]:
    env = os.environ | settings
    command = [sys.executable, "-m", "evofeed.cli"]
    for number in range(5):
        make = [*command, "tokens", "create", f"lab{number}", "--scope", "jobs", "--json"]
        done = subprocess.run(make, env=env, capture_output=True, text=True, check=True)
        (folder / f"token{number}").write_text(json.loads(done.stdout)["token"])
    with (folder / "server.log").open("wb") as log:
        serve = [*command, "serve", "--port", str(port)]
        child = subprocess.Popen(serve, env=env, stdout=log, stderr=subprocess.STDOUT)
    import httpx

    for _ in range(240):
        time.sleep(0.5)
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2).raise_for_status()
            return child
        except httpx.HTTPError:
            if child.poll() is not None:
                break
    raise SystemExit((folder / "server.log").read_text()[-2000:])


def _ask(args: argparse.Namespace, folder: Path, families: list[list[str]]) -> list[dict[str, Any]]:
    children, start = [], 0
    for principal, count in enumerate(args.clients):
        asked = []
        for number in range(start, start + count):
            one, other = number % _FAMILIES, (number * 7 + 3) % _FAMILIES
            asked.append(
                {
                    "families": [one, other],
                    "sequences": [families[one][0][number // _FAMILIES :], families[other][0]],
                    "pairing": number % 5 == 4 and one != other,
                    "prefix": str(folder / f"client{number}"),
                }
            )
        start += count
        given = {
            "site": [args.site] if args.site else [],
            "url": f"http://127.0.0.1:{args.port}",
            "token": (folder / f"token{principal}").read_text(),
            "boltz": principal == len(args.clients) - 1,
            "asked": asked,
        }
        child = subprocess.Popen(
            [args.peers, "-c", _CLIENTS, json.dumps(given)],
            env=os.environ | {"PYTHONPATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
        )
        children.append(child)
    results = []
    for child in children:
        out, err = child.communicate(timeout=3600)
        if child.returncode:
            raise SystemExit(err.decode()[-2000:])
        results.append(json.loads(out.splitlines()[-1]))
    return results


def _alone(
    folder: Path, settings: dict[str, str], answers: list[dict[str, Any]]
) -> dict[tuple[str, str], str]:
    """What each sequence has when it is searched without the server, by expansion and sequence."""
    from evofeed.featurize.search import Database, Search, SearchCache, SearchConfig, SearchOptions

    paths = json.loads(settings["EVOFEED_MSA_DATABASES"])
    found: dict[tuple[str, str], str] = {}
    for expansion, names in (("filter", ("uniref", "env")), ("pair", ("uniref",))):
        asked = {
            s for a in answers for s in a["sequences"] if a["pairing"] == (expansion == "pair")
        }
        databases = [Database(name, paths[name]) for name in names]
        cache = SearchCache(folder / f"alone_{expansion}")
        config = SearchConfig.colabfold(expansion=expansion)
        job = Search(sorted(asked), databases, config, SearchOptions(workers=2), cache)
        results, _ = job.run()
        job.close()
        for sequence in asked:
            texts = [cache.read(results[sequence, n]).decode() for n in range(len(names))]
            found[expansion, sequence] = "".join(text.rstrip("\n") + "\n" for text in texts)
        cache.close()
    return found


def _is_right(answer: dict[str, Any], alone: dict[tuple[str, str], str]) -> bool:
    """Whether every letter is as searched alone, pairs joined, and templates are there."""
    from evofeed.featurize.search import pair

    if "a3m" not in answer:
        return False
    sequences = answer["sequences"]
    names = [f">{101 + list(dict.fromkeys(sequences)).index(s)}" for s in sequences]
    if answer["pairing"]:
        blocks = pair([alone["pair", s].encode() for s in sequences])
        wanted = [block.decode() for block in blocks]
    else:
        wanted = [alone["filter", s] for s in sequences]
    for index, (name, text) in enumerate(zip(names, wanted, strict=True)):
        if answer["a3m"][index] != text.replace(">query\n", f"{name}\n"):
            return False
        if answer["templates"] and not _has_template(
            answer["templates"][index], answer["families"][index]
        ):
            return False
    return True


def _has_template(folder: str | None, number: int) -> bool:
    """Whether the client unpacked the family's own chain and its structure."""
    name = f"1a{number:02d}"
    if folder is None or not (Path(folder) / f"{name}.cif").is_file():
        return False
    return f"{name}_A" in (Path(folder) / "pdb70_a3m.ffindex").read_text()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
