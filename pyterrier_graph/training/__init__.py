"""Training: negatives, examples, validation, and the glue to ``transformers.Trainer``."""
