"""Conversion of datasets between formats, checks of datasets, and the datasets that can be downloaded."""
