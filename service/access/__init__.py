"""Who may do what and how much of it, and the audit."""
