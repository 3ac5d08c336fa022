"""The losses of AF2's training, one module each, and their weighted sum.

Every function returns one value per sample `[*]`: a batch's loss is the mean of
its samples' losses, whatever the batch size.
"""

from evofeed.trainer.losses.total import AlphaFoldLoss

__all__ = ["AlphaFoldLoss"]
