"""The sink's options: parsed and checked before any network access."""
