"""The only part that knows transformers' internals: attention, caches, compressed contexts, version differences."""
