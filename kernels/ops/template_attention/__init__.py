"""Attention of every pair to the templates at that pair."""

KERNELS = {"attention": "template_attention template_attention_grad"}
