"""Byte layouts, file names and hash rules of RocketMQ's stores, each declared once. No I/O."""
