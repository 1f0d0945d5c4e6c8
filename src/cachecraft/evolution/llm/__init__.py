"""Talking to a language model: replies, the record of every call, the endpoint and what stands between it and the run."""
