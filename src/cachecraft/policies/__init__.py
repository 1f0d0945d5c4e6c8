"""Built-in policies, one file each; a file that is put here is a policy of that name."""
