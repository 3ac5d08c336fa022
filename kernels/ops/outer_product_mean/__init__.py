"""Mean of outer products over the sequences: `outer_product_mean`."""
