"""`evofeed jobs`: show featurize jobs, cancel them, retry broken chains."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from evofeed.base.options import Json, group

jobs = group("Featurize jobs: status, cancel, retry, run.\n\nExample: evofeed jobs status data/")

_Where = Annotated[str, typer.Argument(help="Dataset, ledger file or SQLAlchemy URL.")]
_JobId = Annotated[str, typer.Option("--job", help="Job id or its beginning; the newest if empty.")]


def _open(where: str) -> Any:
    from evofeed.base.errors import JobError
    from evofeed.featurize.job.ledger import Ledger
    from evofeed.featurize.job.options import ledger_url

    url = where if _is_database(where) else ledger_url("", where)
    if "://" not in url and not Path(url).is_file():
        raise JobError("no job ledger there: give a dataset, a ledger file or its URL", path=url)
    return Ledger(url)


def _is_database(where: str) -> bool:
    """True if the argument names a ledger itself, and not its dataset."""
    return where.startswith(("sqlite:", "postgresql")) or Path(where).is_file()


def _pick(ledger: Any, job_id: str) -> Any:
    from evofeed.base.errors import JobError

    if job_id:
        return ledger.job(job_id)
    jobs = ledger.jobs()
    if not jobs:
        raise JobError("no job yet: start one with `evofeed featurize`", path=ledger.location)
    return jobs[0]


def _status(ledger: Any, job: Any) -> dict[str, Any]:
    from evofeed.featurize.job.lock import is_driven

    job = ledger.job(job.job_id)
    counts = ledger.counts(job.job_id)
    share = counts["cost_done"] / max(counts["cost"], 1)
    names = ("job_id", "state", "input_uri", "dataset_uri", "num_chains", "snapshot", "message")
    status: dict[str, Any] = {name: getattr(job, name) for name in names} | counts
    if job.state == "running" and not is_driven(ledger, job.job_id):
        status["state"] = "stopped"
        status["message"] = "its driver is gone: `evofeed jobs run` continues it"
    status["share"] = round(share, 4)
    status["updated_seconds_ago"] = round(max(0.0, time.time() - job.updated_at), 1)
    return status


def _line(status: dict[str, Any]) -> str:
    text = (
        f"{status['job_id'][:12]}  {status['state']:<9}  {status['share']:4.0%}  "
        f"{status['chains_good']}/{status['num_chains']} good, {status['chains_broken']} broken  "
        f"{status['dataset_uri']}"
    )
    return f"{text}  ({status['message']})" if status["message"] else text


@jobs.command()
def status(where: _Where, job_id: _JobId = "", as_json: Json = False) -> None:
    """Show the state of a dataset's jobs.

    Example: evofeed jobs status data/
    """
    ledger = _open(where)
    selected = [ledger.job(job_id)] if job_id else ledger.jobs()
    statuses = [_status(ledger, job) for job in selected]
    if job_id and not as_json:
        _print_details(ledger, statuses[0])
    elif as_json:
        print(json.dumps(statuses))
    else:
        print("\n".join(map(_line, statuses)) or "no job yet: start one with `evofeed featurize`")


def _print_details(ledger: Any, status: dict[str, Any]) -> None:
    print(_line(status))
    for name in ("input_uri", "snapshot", "units_todo", "units_leased", "units_done"):
        print(f"  {name:<13}{status[name]}")
    for unit in ledger.units(status["job_id"], "leased"):
        seconds, count = max(0, time.time() - unit["leased_at"]), len(unit["chain_ids"])
        chains = f"{unit['chain_ids'][0]}, first of {count}"
        print(f"  in work {chains}: attempt {unit['attempts']}, begun {seconds:.0f} s ago")
    for chain in ledger.chains(status["job_id"], dead=None):
        location = ":".join(str(part) for part in (chain["path"], chain["line"]) if part)
        kind = "broken" if chain["dead"] else "suspect"
        prefix = f"{location}: " if location else ""
        print(f"  {kind} {chain['chain_id']}: {prefix}{chain['message']}")


@jobs.command()
def cancel(where: _Where, job_id: _JobId = "", as_json: Json = False) -> None:
    """Stop a running job; finished work is kept, and running it again continues.

    Example: evofeed jobs cancel data/
    """
    ledger = _open(where)
    job = _pick(ledger, job_id)
    is_running = job.state == "running"
    if is_running:
        ledger.request_cancel(job.job_id)
    text = "asked to stop" if is_running else f"is not running but {job.state}"
    result = {"job_id": job.job_id, "state": job.state, "cancel_requested": is_running}
    print(json.dumps(result) if as_json else f"job {job.job_id[:12]} {text}")
    raise typer.Exit(0 if is_running else 1)


@jobs.command()
def retry(where: _Where, job_id: _JobId = "", as_json: Json = False) -> None:
    """Retry the broken chains of a job.

    Example: evofeed jobs retry data/
    """
    ledger = _open(where)
    job = _pick(ledger, job_id)
    job_ids = [other.job_id for other in ledger.jobs() if _are_phases(job, other)]
    if not any(ledger.chains(phase_id) for phase_id in job_ids):
        result = {"job_id": job.job_id, "chains": 0}
        print(json.dumps(result) if as_json else f"no broken chain in job {job.job_id[:12]}")
        return
    for phase_id in job_ids:
        ledger.retry(phase_id)
    _run(ledger, job, where, as_json)


def _are_phases(job: Any, other: Any) -> bool:
    """True if two jobs are phases of one command: entries, and the molecules that they need."""
    if job.job_id == other.job_id:
        return True
    return "entries" in job.arguments and job.arguments == other.arguments


@jobs.command()
def run(where: _Where, job_id: _JobId = "", as_json: Json = False) -> None:
    """Run a job of the ledger again, with its original arguments.

    Example: evofeed jobs run data/ --job 3f2a
    """
    ledger = _open(where)
    _run(ledger, _pick(ledger, job_id), where, as_json)


def _run(ledger: Any, job: Any, where: str, as_json: bool) -> None:
    from evofeed.featurize.config import CropConfig, FeaturizeConfig, InputCaps
    from evofeed.featurize.job.options import JobOptions
    from evofeed.featurize.job.show import run_and_show

    # The dataset may have been moved since, with the ledger in it.
    dataset_uri = job.dataset_uri if _is_database(where) else where
    if "entries" in job.arguments:
        from evofeed.featurize.entries.commands import run_entries
        from evofeed.featurize.entries.job import prepare_again

        url = ledger.url
        ledger.close()
        run_entries(partial(prepare_again, job.arguments, dataset_uri, url), as_json)
    values = job.arguments["config"]
    config = FeaturizeConfig(**{**values, "caps": InputCaps(**values["caps"])})
    crop = CropConfig(**job.arguments["crop"]) if job.arguments["crop"] else None
    options = JobOptions(**{**job.arguments["options"], "ledger": ledger.url})
    ledger.close()
    settings = {"config": config, "crop": crop, "options": options}
    settings["discover_args"] = job.arguments["discover"]
    report = run_and_show(job.input_uri, dataset_uri, as_json, **settings)
    raise typer.Exit(report.exit_code)
