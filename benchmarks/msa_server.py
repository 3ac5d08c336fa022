"""Fifty of ColabFold's own clients at once against the MSA server: is every answer right?

    python benchmarks/msa_server.py --peers PYTHON [--clients 50] [--out RESULT.json]

`PYTHON` has `colabfold`; each client is a process of it that calls `run_mmseqs2`, unchanged, for
two sequences, single chains or pairs by turns. The server searches two FASTA databases of
simulated families by jackhmmer and lets each principal have twenty tickets waiting; all clients
are of one machine and so one principal, and who is one too many is told to come again. An answer
is right if its queries are those asked, every other row is of their own family, and the relatives
of the family are there.
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

_CLIENT = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
sys.path += json.loads(sys.argv[5])
from colabfold.colabfold import run_mmseqs2
url, prefix, seqs, pairing = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] == "1"
began = time.time()
out = run_mmseqs2(seqs, prefix, use_env=True, use_pairing=pairing, host_url=url, user_agent="bench")
print(json.dumps({"began": began, "ended": time.time(), "a3m": out}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="Python with colabfold.")
    parser.add_argument("--site", default="", help="further folder of packages for that Python")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--port", type=int, default=8479)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/msa_server.json"))
    args = parser.parse_args()
    from tests.featurize.search_programs import family, fasta

    families = [family(seed, 8, 90) for seed in range(25)]
    with tempfile.TemporaryDirectory(prefix="evofeed-msa-") as name:
        folder = Path(name)
        rows = [
            (f"UniRef100_F{f}N{n} Thing n=1 Tax=Some TaxID={n + 1} RepID=X", s)
            for f, kin in enumerate(families)
            for n, s in enumerate(kin[1:])
        ]
        databases = {
            "uniref": fasta(folder / "uniref.fasta", rows),
            "env": fasta(folder / "env.fasta", rows[::2]),
        }
        server = _serve(folder, databases, args.port)
        try:
            url = f"http://127.0.0.1:{args.port}"
            began = time.time()
            answers = _ask(args, url, folder, families)
            seconds = time.time() - began
        finally:
            server.terminate()
            server.wait(30)
    right = [_is_right(a, families) for a in answers]
    took = [a["ended"] - a["began"] for a in answers if "a3m" in a]
    found = {
        "command": "python " + " ".join(sys.argv),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "clients": args.clients,
        "right": sum(right),
        "wrong": [a for a, ok in zip(answers, right, strict=True) if not ok][:3],
        "seconds": round(seconds, 1),
        "seconds_a_client": {
            "median": round(statistics.median(took), 1),
            "max": round(max(took), 1),
        },
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1)[:2000])


def _serve(folder: Path, databases: dict[str, str], port: int) -> subprocess.Popen[bytes]:
    env = os.environ | {
        "EVOFEED_HOME": str(folder / "home"),
        "EVOFEED_MSA_DATABASES": json.dumps(databases),
        "EVOFEED_MSA_WORKERS": "2",
        "EVOFEED_MSA_MAX_WAITING": "20",
        "EVOFEED_AUTH": "off",
    }
    command = [sys.executable, "-m", "evofeed.cli", "serve", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
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


def _ask(
    args: argparse.Namespace, url: str, folder: Path, families: list[list[str]]
) -> list[dict[str, Any]]:
    children = []
    site = json.dumps([args.site] if args.site else [])
    for number in range(args.clients):
        one, other = number % 25, (number * 7 + 3) % 25
        sequences = [families[one][0][number // 25 :], families[other][0]]
        pairing = "1" if number % 5 == 4 and one != other else "0"
        prefix = str(folder / f"client{number}")
        command = [args.peers, "-c", _CLIENT, url, prefix, json.dumps(sequences), pairing, site]
        child = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
        )
        children.append((child, [one, other], sequences, pairing))
    answers = []
    for child, members, sequences, pairing in children:
        out, err = child.communicate(timeout=900)
        told = {"families": members, "sequences": sequences, "pairing": pairing}
        if child.returncode:
            answers.append({**told, "error": err.decode()[-400:]})
        else:
            answers.append({**told, **json.loads(out.splitlines()[-1])})
    return answers


def _is_right(answer: dict[str, Any], families: list[list[str]]) -> bool:
    if "a3m" not in answer:
        return False
    unique = list(dict.fromkeys(answer["sequences"]))
    for index, (number, sequence) in enumerate(
        zip(answer["families"], answer["sequences"], strict=True)
    ):
        lines = answer["a3m"][index].splitlines()
        heads = [line for line in lines if line.startswith(">")]
        if lines[1] != sequence or heads[0] != f">{101 + unique.index(sequence)}":
            return False
        named = {head.split()[0] for head in heads if "UniRef100" in head}
        own = {name for name in named if name.startswith(f">UniRef100_F{number}N")}
        wanted = 3 if answer["pairing"] == "1" else len(families[number]) - 2
        if named != own or len({name.partition("/")[0] for name in own}) < wanted:
            return False
    return True


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
