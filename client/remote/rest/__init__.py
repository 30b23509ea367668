"""The client of servers of the Open Inference Protocol over HTTP/1.1."""
