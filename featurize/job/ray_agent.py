"""Replaces an agent of Ray's: says on which port it would be, and waits for its raylet's end.

    python -S ray_agent.py dashboard_agent_command SESSION_DIR NODE_ID

A raylet does not start without its agents and ends when one of them does.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

_NO_PORT = "-1"  # what an agent writes that has no server
_PORTS = {
    "dashboard_agent_command": (
        "metrics_agent_port",
        "metrics_export_port",
        "dashboard_agent_listen_port",
    ),
    "runtime_env_agent_command": ("runtime_env_agent_port",),
}
_PR_SET_PDEATHSIG = 1


def main(agent: str, session_dir: str, node_id: str) -> None:
    """Write the port files the raylet waits for, then do nothing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in _PORTS[agent]:
        path = Path(session_dir, f"{name}_{node_id}")
        aside = path.with_suffix(".tmp")
        aside.write_text(_NO_PORT)
        aside.replace(path)
    with path.open():  # so that the guardian takes it for one of this Ray's
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
