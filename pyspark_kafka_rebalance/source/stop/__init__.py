"""``stop_gracefully``: a query ends after the batch that runs."""
