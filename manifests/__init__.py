"""Manifests: what models, frameworks and datasets are, and where they are found.

Owns the schema, loading, name and version resolution, the manifests that ship with the program and the
tree of exceptions. Imports no framework, no gRPC and no database.
"""
