"""Fused Triton kernels, each beside its plain PyTorch reference.

Nothing here needs a GPU or Triton to import; names are loaded when first used.
"""

from evofeed.lazy import names_from

__all__ = [
    "FusedAdamEMA",
    "FusedLAMB",
    "FusedLARS",
    "LSTM",
    "LayerNorm",
    "MultiheadAttention",
    "PeerMemory",
    "SwapReport",
    "adaptive_norm",
    "attention_of",
    "biased_attention",
    "gated_attention",
    "global_attention_of",
    "layer_norm",
    "masked_softmax",
    "outer_product_mean",
    "outer_product_mean_of",
    "pair_bias",
    "pair_bias_of",
    "record_graph",
    "swiglu_transition",
    "to_fused",
    "to_torch",
    "transition",
    "transition_of",
    "triangle_attention_of",
    "triangle_multiplication",
    "triangle_multiplication_of",
    "weighted_average",
]

_HOMES = {
    "FusedAdamEMA": "ops.optimizer.op",
    "FusedLAMB": "drop_ins.layerwise",
    "FusedLARS": "drop_ins.layerwise",
    "LSTM": "drop_ins.lstm",
    "LayerNorm": "drop_ins.layer_norm",
    "MultiheadAttention": "drop_ins.multihead_attention",
    "PeerMemory": "runtime.peer_memory",
    "SwapReport": "swap.swap",
    "adaptive_norm": "ops.adaptive_norm.op",
    "attention_of": "swap.shards",
    "biased_attention": "ops.attention.op",
    "gated_attention": "ops.gated_attention.op",
    "global_attention_of": "swap.shards",
    "layer_norm": "ops.layer_norm.op",
    "masked_softmax": "ops.softmax.op",
    "outer_product_mean": "ops.outer_product_mean.op",
    "outer_product_mean_of": "swap.shards",
    "pair_bias": "ops.pair_bias.op",
    "pair_bias_of": "swap.shards",
    "record_graph": "graphs.capture",
    "swiglu_transition": "ops.swiglu.op",
    "to_fused": "swap.swap",
    "to_torch": "swap.swap",
    "transition": "ops.transition.op",
    "transition_of": "swap.shards",
    "triangle_attention_of": "swap.shards",
    "triangle_multiplication": "ops.triangle_multiplication.op",
    "triangle_multiplication_of": "swap.shards",
    "weighted_average": "ops.weighted_average.op",
}

__getattr__ = names_from(__name__, _HOMES)
