"""PAIR (Ren et al. 2021): dual-encoders, and how they are trained."""
