"""Teams on one sentence encoder and real texts, against models trained on pooled data."""
