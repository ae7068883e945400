"""Evaluation: measures, folds, cross-validation, significance, model cards."""
