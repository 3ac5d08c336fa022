"""The executor that a job or a search asks for."""

from __future__ import annotations

from evofeed.featurize.job.executors import Executor, LocalExecutor
from evofeed.featurize.job.options import Workplace


def open_executor(options: Workplace, grace: float = 0.0) -> Executor:
    """The executor of units; closing it stops all that it started.

    Args:
        options: where units run, and how many at once.
        grace: seconds beyond the deadline after which a worker is killed.

    Raises:
        JobError: Ray cannot be started or joined.
    """
    number, deadline = options.num_workers, options.deadline + grace
    if not options.on_ray:
        return LocalExecutor(number, deadline)
    from evofeed.featurize.job.ray_executor import RayExecutor

    return RayExecutor(options.workers if options.cluster else number, deadline, options.cluster)
