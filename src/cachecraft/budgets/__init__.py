"""Searching how many entries each layer and kv head keeps (EvolKV)."""
