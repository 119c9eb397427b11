"""Families for CUDA GPUs."""
