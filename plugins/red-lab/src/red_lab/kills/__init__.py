"""Kill recomposes and servers with signal 9, hundreds of times; look at what each kill left."""
