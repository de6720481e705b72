"""The offsets to commit, and the loop that sends them."""
