"""Shared by all experiments: collections, stored runs, tables, command lines, measurements of cost."""
