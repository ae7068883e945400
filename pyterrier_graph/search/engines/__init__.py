"""Retrievers over engines that serve a GraphIndex: see docs/scale.md."""
