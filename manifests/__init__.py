"""Manifests: descriptions of models, frameworks and datasets, and the catalogue that finds them.

Owns the schema, loading, name and version resolution, the manifests that ship with the program and the
tree of exceptions. Imports no framework, no gRPC and no database.
"""
