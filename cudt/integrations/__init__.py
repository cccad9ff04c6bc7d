"""Layerwise descent in other people's training loops, one file a library, and runs on the Hugging
Face hub.
"""
