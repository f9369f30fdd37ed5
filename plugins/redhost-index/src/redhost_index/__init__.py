"""The experts of an index: listed, searched, compared with what is composed, and upgraded to.

Its commands are its interface.
"""
