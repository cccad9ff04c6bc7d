"""What the primal side minimises, one file an objective."""
