"""Kill a recompose with signal 9, hundreds of times, and look at what each kill left."""
