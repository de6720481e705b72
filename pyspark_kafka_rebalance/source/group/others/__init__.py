"""What other members of the group own and have delivered."""
