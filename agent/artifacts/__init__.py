"""The files of models and datasets: locating, downloading, unpacking, verifying and caching them."""
