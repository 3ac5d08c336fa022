"""Global column attention of the extra MSA stack: `global_column_attention`."""

KERNELS = {"attention": "attend attend_grad gated_broadcast_grad pool pool_grad"}
