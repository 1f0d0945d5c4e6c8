"""Discover, measure and ship KV-cache eviction policies for transformer language models."""
