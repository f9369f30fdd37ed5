"""`redhost lab fleet`: replicas killed while the pointer moves; canaries and their cost."""
