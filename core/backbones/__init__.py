"""Text to hidden states: the frozen backbone, its trunk, and interventions inside the trunk."""
