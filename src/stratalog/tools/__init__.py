"""What an operator does to a store's files without running it: look, check, repair, rebuild."""
