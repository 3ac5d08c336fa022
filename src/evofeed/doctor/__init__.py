"""Checks of a machine: packages, memory, GPUs, and settings that cause trouble."""

from evofeed.doctor.command import Check, advice, check_list, examine, machine_texts

__all__ = ["Check", "advice", "check_list", "examine", "machine_texts"]
