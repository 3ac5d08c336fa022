"""The AlphaFold2 models of chains and complexes, their losses, and a data-parallel trainer.

Names are loaded when first used, so that the command line starts without torch.
"""

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.trainer.config import TrainConfig
    from evofeed.trainer.formats.openfold_checkpoint import (
        load_openfold_checkpoint,
        save_openfold_checkpoint,
    )
    from evofeed.trainer.losses import AlphaFoldLoss
    from evofeed.trainer.losses.metrics import structure_metrics
    from evofeed.trainer.model.alphafold import AlphaFold, from_openfold_batch
    from evofeed.trainer.model.config import LossConfig, ModelConfig
    from evofeed.trainer.predict.prediction import predict_structure
    from evofeed.trainer.predict.weights import load_model
    from evofeed.trainer.presets import (
        Preset,
        finetuning,
        initial_training,
        multimer,
        overfit,
        tiny,
        tiny_multimer,
    )
    from evofeed.trainer.run.loop import Loop
    from evofeed.trainer.run.result import TrainResult
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.run.train import train

__all__ = [
    "AlphaFold",
    "AlphaFoldLoss",
    "Loop",
    "LossConfig",
    "ModelConfig",
    "Preset",
    "TrainConfig",
    "TrainResult",
    "finetuning",
    "from_openfold_batch",
    "initial_training",
    "multimer",
    "load_config",
    "load_model",
    "load_openfold_checkpoint",
    "predict_structure",
    "save_openfold_checkpoint",
    "structure_metrics",
    "overfit",
    "tiny",
    "tiny_multimer",
    "train",
]

__getattr__ = names_from(__name__)
