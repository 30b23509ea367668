"""MXNet's operator, and Gluon's block, for each operator of the table, file by file as the table has them."""
