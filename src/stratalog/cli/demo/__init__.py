"""`stratalog demo`: the whole road once, on the flights that left New York in 2013."""
