"""LoRA adapters as experts: PEFT's files, read, computed with, trained and written; and grafts."""
