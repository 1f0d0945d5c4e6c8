"""Talking to a language model: reading replies, recording calls, reaching an endpoint and sparing it."""
