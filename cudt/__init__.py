"""cudt: transformers whose every layer lowers the loss, trained by primal-dual descent."""

__version__ = "0.1.0"
