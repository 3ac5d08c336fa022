"""Attention of every pair to the templates at that pair."""

KERNELS = {
    "attention": "template_attention template_attention_grad",
}
"""Its kernels, without `_kernel`, by what a run's report counts them as."""
