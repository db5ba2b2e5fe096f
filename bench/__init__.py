"""Figures of this machine and of Headrace on it; not tests. ``python -m bench`` runs everything."""
