"""The papers' equations as torch modules: tensors in, tensors out."""
