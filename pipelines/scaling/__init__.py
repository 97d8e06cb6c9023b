"""A family of teachers on one stream: its rows, its members, what they cost and what size buys."""
