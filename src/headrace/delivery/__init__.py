"""Who gets what, when: the pure core. Start reading at states.py, then decide.py and evolve.py."""
