"""The AlphaFold2 monomer model, its losses, and its DDP trainer.

Names are loaded when first used, so that the command line starts without torch.
"""

from typing import Any

_HOMES = {
    "AlphaFold": "model",
    "AlphaFoldLoss": "losses",
    "LossConfig": "model_config",
    "ModelConfig": "model_config",
    "TrainConfig": "config",
    "TrainResult": "loop",
    "finetuning": "model_config",
    "from_openfold_batch": "model",
    "initial_training": "model_config",
    "load_model": "predict",
    "load_openfold_checkpoint": "openfold_checkpoint",
    "predict_structure": "predict",
    "save_openfold_checkpoint": "openfold_checkpoint",
    "structure_metrics": "metrics",
    "tiny": "model_config",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
