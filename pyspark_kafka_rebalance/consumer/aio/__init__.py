"""The asyncio faces of the consumer."""
