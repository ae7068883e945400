"""CLEF-IP: a collection of patents, the task to find passages that are prior art for claims, and its transformers.

The pipeline is that of Albarede et al. 2023, Sect. 5.1.2 and 5.2.2.
"""

import lazy_loader

# the names of __init__.pyi
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
