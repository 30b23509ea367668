"""Files of models and datasets: located, downloaded, unpacked, checked and cached."""
