"""What is to be committed, and the loop that sends it."""
