"""A share of real requests decoded both ways, and what came of it."""
