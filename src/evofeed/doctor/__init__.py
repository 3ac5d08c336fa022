"""What a machine has and what would be in the way: packages, memory, GPUs."""

from evofeed.doctor.checks import Check, check_list
from evofeed.doctor.command import advice, examine, machine_texts

__all__ = ["Check", "advice", "check_list", "examine", "machine_texts"]
