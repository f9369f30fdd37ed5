"""Teams on one sentence encoder and real texts, against models trained on everybody's data."""
