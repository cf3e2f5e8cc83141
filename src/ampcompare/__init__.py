"""AMP Compare: what does mixed precision buy, and can the answer be trusted?"""

__version__ = "0.1.0"
