"""Bytes and protocol rules: one folder per protocol, sans-io."""
