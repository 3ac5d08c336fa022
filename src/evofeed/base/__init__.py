"""What every room stands on: errors, configurations, files, command-line options."""
