"""The author's path: rows in, a trained and packaged expert or backbone out."""
