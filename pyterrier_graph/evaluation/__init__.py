"""How rankings are measured and experiments are done: measures, folds, cross-validation, significance."""
