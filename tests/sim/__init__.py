"""Whole shards under one seed: simulated clock, disk and clients, and a ledger that knows what must be true."""
