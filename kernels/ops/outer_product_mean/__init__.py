"""Mean of outer products over the sequences: `outer_product_mean`."""

KERNELS = {"elementwise": "masked_halves", "gemm": "outer_dproject outer_dw outer_project"}
