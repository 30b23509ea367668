"""Manifests: descriptions of models, frameworks and datasets, and the catalogue that finds them.

Contains the schema, loading, name and version resolution, the manifests that ship with the program, and the
tree of exceptions. It imports no framework, gRPC or database.
"""
