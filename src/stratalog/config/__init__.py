"""Typed settings of stores and tiers, and RocketMQ's `broker.conf`."""
