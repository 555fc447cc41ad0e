"""The pipeline on Spark: what reads, moves and checks whole histories. Importing it starts nothing."""
