"""Kill recomposes and servers with signal 9, hundreds of times, and check the home afterwards."""
