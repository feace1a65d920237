"""Doors into other libraries, a file each, which imports its library when it is asked for and not before."""
