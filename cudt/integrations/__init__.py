"""Layerwise descent in other people's training loops, one file a library."""
