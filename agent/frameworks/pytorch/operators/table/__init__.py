"""PyTorch's function for each operator of the table, file by file as the table has them."""
