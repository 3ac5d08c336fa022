"""What a machine has and what would be in the way: packages, host, GPUs, links, network."""

from evofeed.doctor.checks import Check
from evofeed.doctor.command import advice, examine
from evofeed.doctor.gpu_checks import gpu_checks
from evofeed.doctor.host_checks import host_checks
from evofeed.doctor.machine_texts import machine_texts

__all__ = ["Check", "advice", "examine", "gpu_checks", "host_checks", "machine_texts"]
