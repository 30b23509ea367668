"""The graph in ONNX of each operator of the table, file by file as the table has them."""
