"""The broker judged from outside; see ``__main__.py``."""
