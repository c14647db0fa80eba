"""The live lab: containers, shaped links, their measurement."""
