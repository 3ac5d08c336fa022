"""Global column attention of the extra MSA stack: `global_column_attention`."""
