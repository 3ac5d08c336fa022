"""The AlphaFold2 monomer model, its losses, and its DDP trainer.

Names are loaded when first used, so that the command line starts without torch.
"""

from evofeed.lazy import names_from

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

__getattr__ = names_from(__name__, _HOMES)
