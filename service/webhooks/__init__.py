"""What is posted to those who asked to hear of it."""
