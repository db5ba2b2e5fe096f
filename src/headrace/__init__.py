"""Headrace: one log; queue, topic, schedule and table."""
