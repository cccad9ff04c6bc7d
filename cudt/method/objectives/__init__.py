"""The objectives: what the primal optimiser minimises, one file per objective; base.py is the
contract.
"""
