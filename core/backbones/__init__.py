"""Text to hidden states: the frozen backbone, its trunk, and what reads or writes inside it."""
