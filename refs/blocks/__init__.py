"""References of block scales: numbers of 8 and 4 bits with one scale for each block of a group of rows."""
