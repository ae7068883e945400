"""Evaluation: measures, folds, cross-validation, significance."""
