"""The words of a text on the bus: a segment of h̃, experts that read it, and a router of counts."""
