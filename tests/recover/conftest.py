from adapt_world import adapted

__all__ = ["adapted"]
