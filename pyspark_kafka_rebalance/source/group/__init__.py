"""The query in its consumer group: its members, what they own, what is proven and committed."""
