"""Layerwise descent in other people's training loops: transformers' Trainer, TRL, Lightning."""
