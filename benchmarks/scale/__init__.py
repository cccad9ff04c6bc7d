"""What experiments cost on many GPUs, and how many workers one database carries."""
