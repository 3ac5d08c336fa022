"""The AlphaFold2 models of chains and complexes, their losses, and a data-parallel trainer.

Names are loaded when first used, so that the command line starts without torch.
"""

from evofeed.lazy import names_from

_HOMES = {
    "AlphaFold": "model.alphafold",
    "AlphaFoldLoss": "losses",
    "Loop": "run.loop",
    "LossConfig": "model.config",
    "ModelConfig": "model.config",
    "Preset": "presets",
    "TrainConfig": "config",
    "TrainResult": "run.result",
    "finetuning": "presets",
    "from_openfold_batch": "model.alphafold",
    "initial_training": "presets",
    "multimer": "presets",
    "load_model": "predict.prediction",
    "load_openfold_checkpoint": "formats.openfold_checkpoint",
    "predict_structure": "predict.prediction",
    "save_openfold_checkpoint": "formats.openfold_checkpoint",
    "structure_metrics": "losses.metrics",
    "overfit": "presets",
    "tiny": "presets",
    "tiny_multimer": "presets",
    "train": "run.train",
}

__all__ = list(_HOMES)

__getattr__ = names_from(__name__, _HOMES)
