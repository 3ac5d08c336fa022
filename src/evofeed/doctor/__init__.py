"""What a machine has and what would be in the way: packages, memory, GPUs."""

from evofeed.doctor.command import Check, advice, check_list, examine, machine_texts

__all__ = ["Check", "advice", "check_list", "examine", "machine_texts"]
