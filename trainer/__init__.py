"""The AlphaFold2 monomer model, its losses, and its DDP trainer.

Names are loaded when first used, so that the command line starts without torch.
"""

from evofeed.lazy import names_from

_HOMES = {
    "AlphaFold": "model.alphafold",
    "AlphaFoldLoss": "losses",
    "Loop": "run.loop",
    "LossConfig": "model.config",
    "ModelConfig": "model.config",
    "TrainConfig": "run.config",
    "TrainResult": "run.loop",
    "finetuning": "model.config",
    "from_openfold_batch": "model.alphafold",
    "initial_training": "model.config",
    "load_model": "predict.prediction",
    "load_openfold_checkpoint": "formats.openfold_checkpoint",
    "predict_structure": "predict.prediction",
    "save_openfold_checkpoint": "formats.openfold_checkpoint",
    "structure_metrics": "losses.metrics",
    "tiny": "model.config",
    "train": "run.train",
}

__all__ = list(_HOMES)

__getattr__ = names_from(__name__, _HOMES)
