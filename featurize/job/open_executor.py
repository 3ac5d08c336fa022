"""The executor that a job or a search asks for."""

from __future__ import annotations

from evofeed.featurize.job.executors import Executor, LocalExecutor


def open_executor(
    local: bool, deadline: float, num_workers: int, workers: int, cluster: str
) -> Executor:
    """The executor of units; closing it stops all that it started.

    Args:
        local: processes of this machine, else Ray.
        deadline: seconds a unit may take.
        num_workers: of this machine, or of a Ray of our own.
        workers: of a cluster; 0: as many as there is room for.
        cluster: address of a Ray, or "" for one of our own.

    Raises:
        JobError: Ray cannot be started or joined.
    """
    if local:
        return LocalExecutor(num_workers, deadline)
    from evofeed.featurize.job.ray_executor import RayExecutor

    return RayExecutor(workers if cluster else num_workers, deadline, cluster)
